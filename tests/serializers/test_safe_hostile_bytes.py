"""The serializer ``safe`` against bytes that are made to harm: it reads them as data, or not."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
from hostile_bytes import (
    BOUND,
    LIMIT,
    RIGHT,
    Ran,
    Raw,
    array,
    attempt,
    import_beforehand,
    make_stream,
    nothing_but_data,
    one,
    safe,
    tensor,
)

from pparallel.errors import SerializationError
from pparallel_serializers import SafeSerializerConfig
from pparallel_serializers.safe import SafeSerializer, stream


@pytest.fixture(scope="module", autouse=True)
def _imported_beforehand() -> None:
    import_beforehand()


def record(
    names: Any = ("a",),
    formats: Any = ("<i4",),
    offsets: Any = (0,),
    titles: Any = (None,),
    itemsize: Any = 4,
    aligned: Any = False,
) -> tuple[Any, ...]:
    return names, formats, offsets, titles, itemsize, aligned


HUGE = (1 << 31, 1 << 40, 1 << 61, (1 << 64) - 1)
DTYPES: tuple[Any, ...] = (
    *("O", "|O", "|O8", "<O8", "i4,O", "O,i4", "(99999999,)<i4", "<i3", "<f1", "|V9999999999"),
    *(
        "object",
        "__import__('os')",
        "<M8[25s/3]",
        "<M8[99999999999s]",
        "|T16",
        "",
        "<f4\n",
        "<U\u0663",
    ),
    *(None, 1),
)
RAW = (
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91\1"),
    *(b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\1", b"\xc1", b"\x81\1\1"),
    *(b"\xa2\xff\xff", b"\xd6\xff\0\0\0\0", b"\xc7\0\xff"),
    *(b"\xdd\xff\xff\xff\xff" * 1000, b"\x9f" * 1000, b"\xdc\xff\xff" * 1000, b"\x91" * 10000),
)
BEGIN_END = {code: [(0, code), (0, stream.END)] for code in range(16)}


def bad_heads() -> Iterator[list[bytes]]:
    much = 2**32 - 1
    for head in (
        (much, 1, 0),
        (0, much, 0),
        (0, 1, much),
        (much, much, much),
        (0, 1, 0),
        (0, 0, 0),
    ):
        yield make_stream([], [1, 2], head=head)
    yield make_stream([], [])
    yield make_stream([], [1, 2])
    (right,) = make_stream([], [1])
    yield [right[:3] + b"\2" + right[4:]]
    yield [right, b""]
    for raw in RAW:
        yield make_stream([], [Raw(raw)])
    for code in (0, 1, 42, 127):
        yield make_stream([], [msgpack.ExtType(code, b"")])
        yield make_stream([], [msgpack.ExtType(code, b"data")])


def bad_containers() -> Iterator[list[bytes]]:
    for code in (16, 17, 99, 2**32 - 1):
        yield one(code, 1)
    yield make_stream([(1, stream.END)], [1])
    yield make_stream([(0, stream.LIST)], [1])
    yield make_stream([(0, stream.LIST), (2**32 - 1, stream.END)], [1])
    yield make_stream([(0, stream.LIST)] * 3000 + [(0, stream.END)] * 3000, [])
    yield one(stream.DICT, 1, 2, 3)
    yield one(stream.ORDERED, 1, 2, 3)
    for outer in (stream.SET, stream.FROZENSET, stream.DICT):
        steps = [(0, outer), *BEGIN_END[stream.LIST], (1, stream.END)]
        yield make_stream(steps, [1])
    for values in ((1 << 40,), ("text",), (b"", b""), ()):
        yield one(stream.BYTEARRAY, *values)
        yield one(stream.INTEGER, *values)
        yield one(stream.COMPLEX, *values)
    yield one(stream.COMPLEX, "1", "2")
    yield one(stream.COMPLEX, True, False)


def bad_references() -> Iterator[list[bytes]]:
    for number in (0, -1, 1 << 40, True, "0", None):
        yield one(stream.SAME, number)
    for each in ("1", 1.5, (1 << 64) - 1, None, True):
        yield one(stream.SIZE, each)
    yield one(stream.ATTRIBUTES, "text", {})
    of, end = (0, stream.ATTRIBUTES), (0, stream.END)
    a_list, a_dict, ordered = (BEGIN_END[n] for n in (stream.LIST, stream.DICT, stream.ORDERED))
    yield make_stream([of, *a_list, *a_dict, end], [])
    yield make_stream([of, *a_dict, *a_dict, end], [])
    yield make_stream([of, *ordered, end], [])
    yield make_stream([of, *ordered, *a_list, end], [])
    yield make_stream([of, *ordered, (0, stream.DICT), (2, stream.END), end], [1, 2])


def bad_tensors() -> Iterator[list[bytes]]:
    """Storage, dtype, offset, flags, dimensions, shape..., stride..."""
    yield tensor()
    odd: list[Any] = [-1, -3, None, "0", 1.0, 1 << 31, 1 << 40, 1 << 61, (1 << 64) - 1]
    for n in odd:
        yield tensor(n, "float32", 0, 0, 1, 1, 1)
        yield tensor(0, "float32", n, 0, 1, 1, 1)
        yield tensor(0, "float32", n, 0, 1, 0, 1)
        yield tensor(0, "float32", 0, n, 1, 1, 1)
        yield tensor(0, "float32", 0, 0, n, 1, 1)
        yield tensor(0, "float32", 0, 0, 1, n, 1)
        yield tensor(0, "float32", 0, 0, 1, 2, n)
        yield tensor(0, "float32", 0, 0, 1, 1, 1, start=n)
    yield from (tensor(0, "int64", 0, 0, 2, n, n, 0, 0) for n in HUGE)
    yield from (tensor(0, "int64", 0, 0, 3, 0, n, n, 1, n, n) for n in HUGE)
    yield from (tensor(0, "int32", 0, n, 1, 1, 1) for n in (2, 3, 4, 8, 16))
    yield from (tensor(0, "float32", 0, 0, 1, 1, 1, start=n) for n in (1, 8, 16, True))
    yield tensor(1, "float32", 0, 0, 1, 1, 1)
    yield tensor(0, "float32", 0, 0, 1, 1025, 1)
    yield tensor(0, "float32", 0, 0, 1, True, 1)
    yield tensor(0, "float32", 0, 0, 1, 2, 1024)
    yield tensor(0, "float32", 1024, 0, 1, 1, 1)
    yield tensor(0, "float32", 1, 0, 1, 0, 1)
    yield tensor(0, "float32", 0, 0, 2, 1, 1)
    yield tensor(0, "float32", 0, 0, 65, *[1] * 130)
    for name in ("qint8", "quint4x2", "object", "__class__", "Tensor", None, 7, "", "x" * 9999):
        yield tensor(0, name, 0, 0, 1, 1, 1)
    for device in ("cuda:99", "meta", "cpu:0;", "", None, 0, "cuda:" + "9" * 50):
        yield tensor(0, "float32", 0, 0, 1, 1, 1, device=device)
    yield tensor(0, "float32", 0, 0, 1, 2, 1 << 10, start=-2)
    yield tensor(0, "float32", 0, 0, 1, 1, 1, inline="text")


def bad_arrays() -> Iterator[list[bytes]]:
    """Dtype, inline, offset, dimensions, shape..., strides..."""
    yield array()
    for name in DTYPES:
        yield array(name, None, 0, 1, 1, 1)
    for n in (-1, 1025, True, *HUGE):
        yield array("<i4", None, 0, 1, n, 4)
    for n in HUGE:
        yield array("<i4", None, 0, 2, n, n, 0, 0)
        yield array("<i4", None, 0, 3, 0, n, n, 4, n, n)
    for n in (-1, -(1 << 62), 4093, *HUGE):
        yield array("<i4", None, 0, 1, 2, n)
    for n in (-1, 4093, *HUGE):
        yield array("<i4", None, n, 1, 1, 4)
    for n in (-1, 2, 65, *HUGE):
        yield array("<i4", None, n, 1, 4)
    yield array("<i4", None, 0, 65, *[1] * 130)
    yield array("<i4", "text", 0, 1, 1, 4)
    alone, values = [(0, stream.ARRAY), (6, stream.END)], ["<i4", None, 0, 1, 1, 4]
    yield make_stream(alone, values)
    twice = [(0, stream.LIST), *alone, *alone, (0, stream.END)]
    yield make_stream(twice, values * 2, bytes(4096))
    for dtype in bad_records():
        yield array(dtype, None, 0, 1, 1, 4)
    for content in (bytes(8), bytes(4), "text", b"", None):
        yield one(stream.SCALAR, "|O", content)
        yield one(stream.SCALAR, "|V2147483647", content)
        yield one(stream.SCALAR, "<i2", content)


def bad_records() -> Iterator[tuple[Any, ...]]:
    for formats in (("|O",), ("O",), "<i4", (("|O", (1,)),), (), (1,)):
        yield record(formats=formats)
    for offsets in ((-1,), (1 << 40,), ("0",), (), 0):
        yield record(offsets=offsets)
    for itemsize in (-1, 1 << 40, None, 3):
        yield record(itemsize=itemsize)
    for names in (("a", "a"), (1,), ("a", "b"), "a", ()):
        yield record(names=names)
    yield record(titles=(b"x",))
    yield record(titles=())
    yield record(aligned=1)
    for shape in ((-1,), (1 << 40,), 3, ("1",), (1 << 20, 1 << 20)):
        yield "<i4", shape
    yield "O", (1,)
    yield ()
    yield ("<i4",)


BAD = [bad_heads, bad_containers, bad_references, bad_tensors, bad_arrays]


class TestHostileBytes:
    def test_would_be_seen_to_run_code(self) -> None:
        run = exec
        for code in ("eval('1')", "exec('1')", "import this", "open('/dev/null')"):
            compiled = compile(code, "hostile", "exec")
            with pytest.raises(Ran), nothing_but_data():
                run(compiled)
        with pytest.raises(Ran), nothing_but_data():
            pickle.loads(b"N.")

    @pytest.mark.parametrize("streams", BAD, ids=lambda each: each.__name__)
    def test_are_refused(self, streams: Callable[[], Iterator[list[bytes]]]) -> None:
        number = 0
        for number, each in enumerate(streams(), 1):
            found = attempt(each)
            assert isinstance(found, SerializationError), (number, found, each)
        assert number

    def test_leave_garbage_that_can_be_collected(self) -> None:
        """Python 3.11 crashes on memoryviews in a cycle that something else still reads."""
        for streams in BAD:
            for each in streams():
                error = attempt([memoryview(bytearray(buffer)) for buffer in each])
                error.kept = error
        gc.collect()
        assert attempt(RIGHT[0])["a"][0] == 1

    def test_what_looks_wrong_and_is_right(self) -> None:
        assert attempt(tensor(0, "float32", 0, 0, 1, 1 << 40, 0)).shape == (1 << 40,)
        assert attempt(array("<i4", None, 0, 1, 1 << 40, 0)).shape == (1 << 40,)
        assert attempt(array(record(), None, 4092, 1, 1024, -4)).strides == (-4,)
        dense = attempt(tensor(0, "float32", 0, 0, 2, 32, 32, 1, 1 << 40, start=-2))
        assert (dense.shape, dense.stride()) == ((32, 32), (32, 1))
        assert attempt(array(("<i4", (4, 4)), None, 0, 1, 64, 64)).shape == (64, 4, 4)


# -- memory -----------------------------------------------------------------------------------


def many(code: int, *values: Any) -> list[bytes]:
    """Return a stream of as many such containers as count less than ``LIMIT``."""
    number = (LIMIT - 10_000) // ((128 + 8) * 2 + sum(128 + 9 for _ in values))
    steps = [(0, code), (len(values), stream.END)] * number
    return make_stream([(0, stream.LIST), *steps, (0, stream.END)], list(values) * number)


class TestMemory:
    @pytest.mark.parametrize(
        "buffers",
        [
            make_stream([], ["x" * (LIMIT - 1000) + "\U0001f40d"]),
            make_stream([], ["\U0001f40d" + "x" * (LIMIT - 1000)]),
            make_stream([], ["x" * (LIMIT // 2) + "\U0001f40d" + "x" * (LIMIT // 2 - 1000)]),
            make_stream([], [b"x" * (LIMIT - 1000)]),
            one(stream.BYTEARRAY, b"x" * (LIMIT - 1000)),
            one(stream.INTEGER, b"x" * (LIMIT - 1000)),
            one(stream.LIST, *[1 << 40] * 7000),
            one(stream.LIST, *[Raw(b"\x80")] * 8000),
            one(stream.SET, *range(7000)),
            one(stream.DICT, *range(7000)),
            one(stream.ORDERED, *range(7000)),
            many(stream.LIST, 1),
            many(stream.SET),
            many(stream.DICT, 1, 2),
            many(stream.ORDERED, 1, 2),
            many(stream.COMPLEX, 1.0, 2.0),
            many(stream.ARRAY, "<i4", bytes(4), 0, 1, 1, 4),
            many(stream.SCALAR, "<i4", bytes(4)),
            array("<i4", None, 0, 1, LIMIT // 8, 4, content=bytes(LIMIT // 2)),
        ],
        ids=range(19),
    )
    def test_stays_within_the_bound(self, buffers: list[bytes]) -> None:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            found = safe.loads(buffers)
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        assert found is not None
        assert peak <= BOUND * LIMIT, f"{peak / LIMIT:.1f} times max_bytes"

    def test_of_torch_stays_within_the_bound(self) -> None:
        script = """
        import torch
        from pathlib import Path
        from pparallel_serializers import SafeSerializerConfig
        from pparallel_serializers.safe import SafeSerializer

        LIMIT = 1 << 23
        safe = SafeSerializer(SafeSerializerConfig(max_bytes=LIMIT))
        large = torch.zeros(LIMIT - 2000, dtype=torch.uint8)
        whole = [bytes(each) for each in safe.dumps(large)]
        cases = {
            "read-only": whole,
            "unaligned": [whole[0], memoryview(bytearray(b"x" + whole[1]))[1:]],
            "gaps": [bytes(each) for each in safe.dumps(torch.zeros(100, LIMIT // 440)[:, 0])],
            "small": [bytes(each) for each in safe.dumps([torch.ones(2) for _ in range(5_000)])],
            "parameters": [bytes(each) for each in safe.dumps(
                [torch.nn.Parameter(torch.ones(200)) for _ in range(2_500)]
            )],
        }
        def memory(name):
            (line,) = (each for each in open("/proc/self/status") if each.startswith(name))
            return int(line.split()[1]) * 1024
        for name, buffers in cases.items():
            Path("/proc/self/clear_refs").write_text("5")
            before = memory("VmRSS")
            found = safe.loads(buffers)
            if name == "gaps":
                found.untyped_storage().fill_(1)  # touches what it was given
            used = memory("VmHWM") - before
            assert used < BOUND * LIMIT, (name, used / LIMIT)
            print(name, round(used / LIMIT, 1))
            del found
        """
        script = textwrap.dedent(script).replace("BOUND", str(BOUND))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 5, done.stdout


@pytest.mark.parametrize("make", [dict.fromkeys, set, frozenset], ids=["dict", "set", "frozenset"])
def test_keys_that_are_made_to_collide_are_refused(make: Callable[[list[Any]], Any]) -> None:
    modulus = sys.hash_info.modulus
    large = SafeSerializer(SafeSerializerConfig())
    for others in (0, 16_000):  # a few among many are quadratic too
        keys: list[Any] = [*(3 + n * modulus for n in range(2000)), *range(-others, 0)]
        with pytest.raises(SerializationError, match="collide"):
            large.loads(large.dumps(make(keys)))
    for keys in (list(range(500)), [n / 7 for n in range(500)], [n << 40 for n in range(500)]):
        assert safe.loads(safe.dumps(make(keys))) == make(keys)
