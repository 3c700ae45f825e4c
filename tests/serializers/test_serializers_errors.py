"""What serializers cannot send, and what they say then."""

from __future__ import annotations

import os
import pickle
import queue
import re
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from serializers_sent import dill as dill
from serializers_sent import sent
from serializers_sent import serializer as serializer
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel_serializers import PickleSerializerConfig
from pparallel_serializers.dill import DillSerializer
from pparallel_serializers.pickle import PickleSerializer

NO_LOCK = "TypeError: cannot pickle '_thread.lock' object"
ADVICE = "; make it at module level or in a pool's initializer"


class TestPaths:
    def test_the_path_leads_from_the_object_to_the_culprit(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError) as caught:
            serializer.dumps({"a": [1, HoldsLock()]})
        assert str(caught.value) == (
            f"obj['a'][1].inner (threading.Lock) cannot be serialised: {NO_LOCK}{ADVICE}"
        )
        assert isinstance(caught.value.__cause__, TypeError)

    @pytest.mark.parametrize(
        ("make", "path"),
        [
            (lambda: threading.Lock(), "obj (threading.Lock)"),
            (lambda: [HoldsLock().method], "obj[0].__self__.inner (threading.Lock)"),
            (lambda: [partial(print, HoldsLock())], "obj[0].args[0].inner (threading.Lock)"),
            (lambda: deque([HoldsLock()]), "obj[0].inner (threading.Lock)"),
            (lambda: Slotted(threading.RLock()), "obj.held (threading.RLock)"),
            (lambda: Frozen(threading.Lock()), "obj.held (threading.Lock)"),
            (lambda: SimpleNamespace(a=threading.Lock()), "obj.a (threading.Lock)"),
            (lambda: {Slotted(1): [threading.local()]}, "[0] (threading.local)"),
            (lambda: [*range(20_000), HoldsLock()], "obj[20000].inner (threading.Lock)"),
        ],
        ids=lambda each: each if isinstance(each, str) else "",
    )
    def test_each_kind_of_container(
        self, serializer: Serializer, make: Callable[[], object], path: str
    ) -> None:
        with pytest.raises(SerializationError) as caught:
            serializer.dumps(make())
        assert f"{path} cannot be serialised" in str(caught.value)

    def test_state_that_a_hook_leaves_out_is_innocent(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"^obj\[1\]\.inner \(threading.Lock\)"):
            serializer.dumps([LeavesOut(), HoldsLock()])
        with pytest.raises(SerializationError, match=r"^obj\[1\]\.inner \(threading.Lock\)"):
            serializer.dumps([LeavesOut(), Forgets()])

    def test_hooks_are_called_once(self, serializer: Serializer) -> None:
        forgets = Forgets()
        with pytest.raises(SerializationError):
            serializer.dumps(forgets)
        assert forgets.calls == 1

    def test_closures_are_searched(self, dill: DillSerializer) -> None:
        with pytest.raises(SerializationError) as caught:
            dill.dumps([closing_over(iter_nothing())])
        assert "obj[0] closing over value (generator) cannot" in str(caught.value)

    def test_modules_and_named_functions_are_innocent(self, dill: DillSerializer) -> None:
        # Each leads to a lock by its globals.
        for each in (threading, threading.Thread.start, iter_nothing, HoldsLock):
            with pytest.raises(SerializationError, match=r"^obj\[1\] \(threading.Lock\)"):
                dill.dumps([closing_over(each), threading.Lock()])

    def test_deep_nesting(self, serializer: Serializer) -> None:
        deep: list[Any] = []
        for _ in range(30_000):
            deep = [deep]
        with pytest.raises(SerializationError, match=r"^obj \(list\).*: it is nested too deeply"):
            serializer.dumps(deep)

    def test_names_of_the_caller(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError) as caught:
            serializer.dumps((print, (1, HoldsLock()), {"x": 1}))
        error = caught.value
        error.locate({"[0]": "print", "[1]": "args", "[2]": "kwargs"})
        assert str(error).startswith("args[1].inner (threading.Lock) cannot be serialised: ")
        error.locate({"[1][1]": "item"}, "; do so")
        assert str(error).startswith("item.inner (threading.Lock) cannot be serialised: ")
        assert str(error).endswith("; do so")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


class TestAdvice:
    @pytest.mark.parametrize(
        ("make", "kind", "advice"),
        [
            (
                threading.Event,
                "threading.Event",
                "make it at module level or in a pool's initializer",
            ),
            (queue.Queue, "queue.Queue", "make it at module level or in a pool's initializer"),
            (
                lambda: os.fdopen(os.open(os.devnull, os.O_RDONLY)),
                "TextIOWrapper",
                "open it where it is used",
            ),
            (lambda: sqlite3.connect(":memory:"), "sqlite3.Connection", "open it where it is used"),
            (lambda: iter_nothing(), "generator", "return a list, or use a pool's imap"),
            (lambda: weakref.ref(HoldsLock), "weakref.ref", "pass the object itself"),
            (torch.futures.Future, "torch.futures.Future", "pass its result"),
            (
                lambda: iter(DataLoader(TensorDataset(torch.ones(1)))),
                "_SingleProcessDataLoaderIter",
                "the DataLoader",
            ),
        ],
        ids=lambda each: each if isinstance(each, str) else "",
    )
    def test_type_and_advice(
        self, dill: DillSerializer, make: Callable[[], Any], kind: str, advice: str
    ) -> None:
        bad = make()
        with pytest.raises(SerializationError) as caught:
            dill.dumps([bad])
        if hasattr(bad, "close"):
            bad.close()
        assert re.match(rf"obj\[0\] \([\w.]*{kind}\) cannot be", str(caught.value))
        assert advice in str(caught.value)


class TestErrors:
    def test_says_what_failed_in_a_hook(self, serializer: Serializer) -> None:
        with pytest.raises(
            SerializationError, match=r"obj\[1\] \(.*Stubborn\).* no reason"
        ) as caught:
            serializer.dumps([1, Stubborn()])
        assert isinstance(caught.value.__cause__, LookupError)

    def test_pickle_names_the_lambda(self) -> None:
        with pytest.raises(SerializationError, match="lambda"):
            PickleSerializer(PickleSerializerConfig()).dumps([lambda: 1])

    def test_a_failing_repr_hides_nothing(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match="Nameless"):
            serializer.dumps(Nameless())

    def test_a_bystander_that_refuses_all_questions(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"obj\[0\]\.inner \(threading.Lock\)"):
            serializer.dumps([HoldsLock(), Unanswering()])
        with pytest.raises(SerializationError, match=r"obj \(list\)"):
            serializer.dumps([UnansweringHook(), "no lock"])

    def test_a_bystander_that_has_no_name(self) -> None:
        with pytest.raises(SerializationError, match=r"obj\[1\] \(function .*\) cannot"):
            PickleSerializer(PickleSerializerConfig()).dumps([Unprintable, NAMELESS[0]])

    def test_an_error_that_cannot_be_read(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"Silent\) .*: SilentError: <its message"):
            serializer.dumps(Silent())
        stream = serializer.dumps(Late())
        with pytest.raises(SerializationError, match="SilentError: <its message cannot be read>"):
            serializer.loads(stream)

    def test_interrupts_pass(self, serializer: Serializer) -> None:
        with pytest.raises(KeyboardInterrupt):
            serializer.dumps(Interrupts())
        assert sent(serializer, 1) == 1

    def test_code_of_another_python(self, dill: DillSerializer) -> None:
        from importlib.util import MAGIC_NUMBER

        stream = bytes(dill.dumps(lambda: 1)[0])
        with pytest.raises(SerializationError, match="another version of Python"):
            dill.loads([stream.replace(MAGIC_NUMBER, b"\0\0\r\n")])

    def test_serialising_inside_reduce(self, serializer: Serializer) -> None:
        assert sent(serializer, Nesting(serializer)) == [1, 2]

    def test_a_refusal_inside_reduce_is_the_objects(self, serializer: Serializer) -> None:
        with pytest.raises(
            SerializationError, match=r"^obj\[1\] \(.*Nesting\) .*: obj\[0\]\.inner"
        ):
            serializer.dumps([1, Nesting(serializer, HoldsLock())])


class HoldsLock:
    def __init__(self) -> None:
        self.inner = threading.Lock()

    def method(self) -> None:
        """Be bound to it."""


class LeavesOut(HoldsLock):
    @override
    def __getstate__(self) -> object:
        return {}


class Forgets(HoldsLock):
    calls = 0

    @override
    def __getstate__(self) -> object:
        self.calls += 1
        return dict(vars(self))


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held


@dataclass(frozen=True, slots=True)
class Frozen:
    held: object


def iter_nothing() -> Iterator[None]:
    yield from ()


def closing_over(value: object) -> Callable[[], object]:
    return lambda: value


class Stubborn:
    @override
    def __getstate__(self) -> object:
        raise LookupError("no reason")


class Nameless:
    @override
    def __repr__(self) -> str:
        raise LookupError("no name")

    @override
    def __getstate__(self) -> object:
        raise LookupError("no state")


class Unanswering:
    def __getattr__(self, name: str) -> object:
        raise LookupError(name)


class UnansweringHook:
    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        raise LookupError(name)

    @override
    def __reduce__(self) -> Any:
        return list, (threading.Lock(),)


class Refusing(type):
    @override
    def __repr__(cls) -> str:
        raise LookupError("no name")


class Unprintable(metaclass=Refusing):
    pass


NAMELESS = [lambda: 1]


class SilentError(Exception):
    @override
    def __str__(self) -> str:
        raise LookupError("no message")


class Silent:
    @override
    def __getstate__(self) -> object:
        raise SilentError


class Late:
    @override
    def __reduce__(self) -> Any:
        return fail_silently, ()


def fail_silently() -> None:
    raise SilentError


class Interrupts:
    @override
    def __reduce__(self) -> str:
        raise KeyboardInterrupt


class Nesting:
    def __init__(self, serializer: Serializer, *more: object) -> None:
        self.serializer, self.items = serializer, [*more, 1, 2]

    @override
    def __reduce__(self) -> Any:
        inner = self.serializer.loads(self.serializer.dumps(self.items))
        return list, (inner,)
