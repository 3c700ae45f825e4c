"""Streams for the serializer ``safe`` that are made to harm, and an attempt to load them.

Every way to code is poisoned meanwhile, and memory may grow by what is allowed at most.
"""

from __future__ import annotations

import builtins
import marshal
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch
from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel_serializers import SafeSerializerConfig
from pparallel_serializers.safe import SafeSerializer, stream
from pparallel_serializers.safe.stream import HEAD, MARK

BOUND = 8  #: times max_bytes: what SafeSerializer's docstring says of memory
LIMIT = 1 << 20
SLACK = 1 << 29  #: bytes of address space that allocators and threads may reserve meanwhile

safe = SafeSerializer(SafeSerializerConfig(max_bytes=LIMIT))


class Ran(BaseException):
    """Something was run, opened or imported, which only code can ask for."""


def refuse(*args: object, **kwargs: object) -> Any:
    raise Ran(repr(args)[:200])


def imports_known(name: str, *args: Any, _import: Any = builtins.__import__, **kwargs: Any) -> Any:
    return _import(name, *args, **kwargs) if name in sys.modules else refuse(name)


POISONED: list[tuple[Any, str]] = [
    *((pickle, name) for name in ("loads", "load", "Unpickler")),
    *((marshal, name) for name in ("loads", "load")),
    *((os, "system"), (os, "popen"), (subprocess, "Popen")),
    *((builtins, name) for name in ("eval", "exec", "compile", "open")),
]


@contextmanager
def nothing_but_data() -> Iterator[None]:
    """Poison every way to code, and let memory grow by what is allowed at most."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    kept = [(owner, name, getattr(owner, name)) for owner, name in POISONED]
    kept.append((builtins, "__import__", builtins.__import__))
    for owner, name, _ in kept:
        setattr(owner, name, imports_known if name == "__import__" else refuse)
    allowed = pages * resource.getpagesize() + BOUND * LIMIT + SLACK
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for owner, name, value in kept:
            setattr(owner, name, value)


def attempt(buffers: Sequence[Buffer]) -> Any:
    """Load *buffers*; return the value or the error, which must be no lack of memory."""
    try:
        with nothing_but_data():
            found = safe.loads(buffers)
    except SerializationError as error:
        short = isinstance(error.__cause__, (MemoryError, RecursionError))
        if short or "alloc" in str(error):
            raise AssertionError(error) from error
        return error
    touch(found)
    return found


def touch(found: Any) -> None:
    """Read all memory that belongs to *found*: a wrong view would crash."""
    if isinstance(found, torch.Tensor) and found.numel() < LIMIT:
        found.detach().clone()
    elif isinstance(found, np.ndarray) and found.size < LIMIT:
        found.copy()
    elif isinstance(found, (list, tuple, set, frozenset, dict)):
        for each in found.values() if isinstance(found, dict) else found:
            touch(each)


def import_beforehand() -> None:
    """Import what is imported on first use, before all is poisoned."""
    every_way = [torch.ones(1000).conj_physical(), np.ones(1000)[::-1], torch.eye(99)[:, 0]]
    safe.loads(safe.dumps([*every_way, torch.ones(3, dtype=torch.complex64).conj()]))


# -- streams that say anything ----------------------------------------------------------------


def make_stream(
    steps: Sequence[tuple[int, int]],
    values: Sequence[Any],
    *buffers: bytes,
    storages: int = 0,
    head: Sequence[int] | None = None,
) -> list[bytes]:
    """Return buffers that say this, right or wrong."""
    numbers = head or (len(steps), len(values), storages)
    packed = [
        each.packed
        if isinstance(each, Raw)
        else msgpack.packb(each, unicode_errors="surrogatepass")
        for each in values
    ]
    flat_steps = [number for step in steps for number in step]
    lengths = [len(each) for each in buffers]
    first = [HEAD.pack(MARK, *numbers), struct.pack(f"<{len(flat_steps)}I", *flat_steps)]
    first += [struct.pack(f"<{len(lengths)}Q", *lengths), *packed]
    return [b"".join(first), *buffers]


class Raw:
    """A value that is given as msgpack's own bytes."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed


def one(code: int, *values: Any) -> list[bytes]:
    """Return a stream of one container of *values*."""
    return make_stream([(0, code), (len(values), stream.END)], values)


def tensor(
    *values: Any,
    content: bytes = bytes(4096),
    device: Any = "cpu",
    start: Any = 0,
    inline: Any = None,
) -> list[bytes]:
    """Return a stream of one tensor: storage, dtype, offset, flags, dimensions, shape, stride."""
    steps = [(0, stream.TENSOR), (len(values), stream.END)]
    buffers = [content] if inline is None else []
    return make_stream(steps, [*values, device, start, inline], *buffers, storages=1)


def array(*values: Any, content: bytes = bytes(4096)) -> list[bytes]:
    """Return a stream of one array: dtype, inline, span, offset, dimensions, shape, strides."""
    steps: list[tuple[int, int]] = []
    flat: list[Any] = []
    put((stream.ARRAY, *values), steps, flat)
    return make_stream(steps, flat, content)


def put(container: tuple[Any, ...], steps: list[tuple[int, int]], flat: list[Any]) -> None:
    """Write a container, whose code comes first; tuples in it are containers too."""

    def step(code: int) -> None:
        steps.append((len(flat) - sum(gap for gap, _ in steps), code))

    step(container[0])
    for each in container[1:]:
        if isinstance(each, tuple):
            put((stream.TUPLE, *each), steps, flat)
        else:
            flat.append(each)
    step(stream.END)


# -- streams that were right ------------------------------------------------------------------


def right_streams() -> list[list[bytes]]:
    """Return streams that are right, to be spoilt."""
    base = torch.arange(600.0)
    parameter: Any = torch.nn.Parameter(torch.ones(20, 30).t())
    parameter.note = {"mask": base[:500], "me": parameter}
    objects: list[Any] = [
        {"a": [1, 2.5, "text", None, (True, {1, 2})], b"b": 1 << 80, frozenset({1}): bytearray(9)},
        [base[400:], base.view(torch.int32)[::3], base[:0], torch.tensor(1j).conj()],
        [parameter, parameter, torch.eye(99)[:, 0], torch.Size([1])],
        [
            np.arange(600.0)[::-2],
            np.zeros((99, 99))[:, 1],
            np.float64(1),
            np.arange(9).astype("M8[s]"),
        ],
        np.zeros(40, [("a", ">i4"), ("b", "U3", (2,)), ("c", [("d", "f8")])]),
        torch.nn.Linear(30, 30).state_dict(),
    ]
    return [[bytes(each) for each in safe.dumps(obj)] for obj in objects]


RIGHT = right_streams()


def spoilt(rng: random.Random) -> list[bytes]:
    """Return a right stream with bytes and buffers exchanged, cut, dropped or added."""
    buffers = [bytearray(each) for each in rng.choice(RIGHT)]
    for _ in range(rng.randint(1, 4) if buffers else 0):
        which = rng.randrange(len(buffers)) if rng.random() < 0.3 else 0
        each = buffers[which]
        place = rng.randrange(len(each) + 1)
        kind = rng.randrange(8)
        if kind < 3 and place < len(each):
            each[place] = rng.choice([0, 1, 127, 128, 255, each[place] ^ 1 << rng.randrange(8)])
        elif kind == 3:
            del each[place : place + rng.choice([1, 8, 1000])]
        elif kind == 4:
            other = rng.choice(rng.choice(RIGHT))
            start = rng.randrange(len(other) + 1)
            each[place:place] = other[start : start + rng.choice([1, 8, 100])]
        elif kind == 5:
            rng.shuffle(buffers)
        elif kind == 6 and len(buffers) > 1:
            del buffers[which]
        elif kind == 7:
            buffers.append(bytearray(rng.choice(rng.choice(RIGHT))))
    return [bytes(each) for each in buffers]


STRANGE: list[Any] = [
    *(None, True, False, 0, 1, -1, -2, 2, 3, 16, 63, 64, 65, 255, 1 << 31, 1 << 40, 1 << 62),
    *(
        (1 << 64) - 1,
        -(1 << 63),
        0.0,
        float("nan"),
        "",
        "x",
        b"",
        b"x",
        b"\xff" * 100,
        "cpu",
        "cuda",
    ),
    *("float32", "complex64", "bool", "int8", "qint8", "<f8", "|O", "|b1", "<U9", "|V0", "<M8[ns]"),
]


def distorted(rng: random.Random) -> list[bytes]:
    """Return a stream that is well made but says something else than a right one."""
    first, *buffers = rng.choice(RIGHT)
    _, count, number, storages = HEAD.unpack_from(first)
    flat = list(struct.unpack_from(f"<{2 * count}I", first, HEAD.size))
    unpacker = msgpack.Unpacker(unicode_errors="surrogatepass")
    unpacker.feed(first[HEAD.size + 8 * count + 8 * len(buffers) :])
    values = list(unpacker)
    assert len(values) == number
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(8)
        place = rng.randrange(len(values))
        if kind < 4:
            near = values[place]
            near = near + rng.choice([-1, 1, 1024]) if type(near) is int else rng.choice(STRANGE)
            values[place] = rng.choice([near, rng.choice(STRANGE), rng.choice(values)])
        elif kind == 4:
            values.insert(place, rng.choice(STRANGE))
        elif kind == 5 and flat:
            flat[rng.randrange(len(flat))] = rng.choice([0, 1, 2, 7, *range(18), 2**32 - 1])
        elif kind == 6 and flat:
            at = 2 * rng.randrange(len(flat) // 2)
            flat[at:at] = [rng.randrange(3), rng.randrange(18)]
        elif kind == 7:
            storages = rng.choice([0, 1, 2, len(values) // 3, storages + 1])
    steps = list(zip(flat[::2], flat[1::2], strict=True))
    values = [max(-(1 << 63), min(v, (1 << 64) - 1)) if type(v) is int else v for v in values]
    return make_stream(steps, values, *buffers, storages=storages)
