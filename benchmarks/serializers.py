"""How long the serializers take to dump and to load, beside the picklers they compete with."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os.path
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.harness import Contest, Making, Setting, Turn, timed
from pparallel_serializers import DillSerializerConfig, PickleSerializerConfig
from pparallel_serializers.dill import DillSerializer
from pparallel_serializers.pickle import PickleSerializer


class Codec(NamedTuple):
    """Two functions."""

    dumps: Callable[[Any], Any]
    loads: Callable[[Any], Any]


class Subject(NamedTuple):
    """What is serialised: a maker, a view of it that can be compared, and how often per turn."""

    make: Callable[[int], Any]
    view: Callable[[Any], object]
    repeats: int


def codecs() -> dict[str, Codec]:
    """Return all that are installed, ours first."""
    ours = DillSerializer(DillSerializerConfig())
    stock = PickleSerializer(PickleSerializerConfig())
    dill = importlib.import_module("dill")
    found = {
        "ours, dill": Codec(ours.dumps, ours.loads),
        "ours, pickle": Codec(stock.dumps, stock.loads),
        "pickle": Codec(functools.partial(pickle.dumps, protocol=5), pickle.loads),
        "dill": Codec(dill.dumps, dill.loads),
    }
    if importlib.util.find_spec("cloudpickle"):
        cloudpickle = importlib.import_module("cloudpickle")
        found["cloudpickle"] = Codec(cloudpickle.dumps, pickle.loads)
    return found


def _weights(number: int) -> dict[str, Any]:
    import torch

    return {f"layer.{place}": torch.full((1000,), float(number)) for place in range(60)}


def _tensor(number: int, megabytes: int) -> dict[str, Any]:
    import torch

    return {"tensor": torch.full((megabytes << 18,), float(number))}


def _ends(tensors: dict[str, Any]) -> object:
    return [(name, len(each), each[0].item(), each[-1].item()) for name, each in tensors.items()]


def subjects(setting: Setting) -> dict[str, Subject]:
    """Return what is serialised."""
    megabytes = setting.count(64, 1)
    return {
        "lambda": Subject(lambda n: lambda x: x + n, lambda made: made(1), 200),
        "named function": Subject(lambda _: os.path.join, lambda made: made("a", "b"), 2000),
        "small dict": Subject(lambda n: {"a": n, "b": [1.5, "two"], "c": None}, repr, 2000),
        "60 small tensors": Subject(_weights, _ends, 10),
        "64 MB tensor": Subject(functools.partial(_tensor, megabytes=megabytes), _ends, 1),
    }


@contextmanager
def contest(name: str, step: str, setting: Setting) -> Iterator[Contest]:
    """Dump or load one subject by all who can."""
    subject = subjects(setting)[name]
    able = {who: codec for who, codec in codecs().items() if _can(who, codec, subject)}
    repeats = setting.count(subject.repeats, 1)
    turn = _dumping if step == "dumps" else _loading
    yield Contest(
        contenders={who: turn(codec, subject, repeats) for who, codec in able.items()}, rounds=15
    )


def _can(who: str, codec: Codec, subject: Subject) -> bool:
    try:
        codec.dumps(subject.make(1))
    except Exception as error:  # noqa: BLE001 - that a peer cannot is a result
        sys.stderr.write(f"{who} cannot: {type(error).__name__}\n")
        return False
    return True


def _dumping(codec: Codec, subject: Subject, repeats: int) -> Turn:
    def run(made: Any) -> Any:
        for _ in range(repeats):
            data = codec.dumps(made)
        return data

    def right(made: Any, data: Any) -> bool:
        return subject.view(codec.loads(_owned(data))) == subject.view(made)

    return timed(run, subject.make, right, tasks=repeats)


def _loading(codec: Codec, subject: Subject, repeats: int) -> Turn:
    def run(prepared: tuple[Any, Any]) -> Any:
        for _ in range(repeats):
            loaded = codec.loads(prepared[1])
        return loaded

    def prepare(number: int) -> tuple[Any, Any]:
        made = subject.make(number)
        return made, _owned(codec.dumps(made))

    def right(prepared: tuple[Any, Any], loaded: Any) -> bool:
        return subject.view(loaded) == subject.view(prepared[0])

    return timed(run, prepare, right, tasks=repeats)


def _owned(data: Any) -> Any:
    """Return *data* as a transport leaves it with the receiver."""
    return [bytearray(each) for each in data] if isinstance(data, list) else data


CONTESTS: dict[str, Making] = {
    f"{name}, {step}": functools.partial(contest, name, step)
    for name in subjects(Setting())
    for step in ("dumps", "loads")
}
