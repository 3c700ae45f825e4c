"""What serializers cannot send, and what they say then."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from serializers_sent import dill as dill
from serializers_sent import sent
from serializers_sent import serializer as serializer
from typing_extensions import override

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel_serializers import PickleSerializerConfig
from pparallel_serializers.dill import DillSerializer
from pparallel_serializers.pickle import PickleSerializer


class TestErrors:
    def test_says_where(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"lock .* at \['a'\]\[1\]\.inner"):
            serializer.dumps({"a": [1, HoldsLock()]})

    def test_says_what_failed_in_a_hook(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"Stubborn .* at \[1\].* no reason") as caught:
            serializer.dumps([1, Stubborn()])
        assert isinstance(caught.value.__cause__, LookupError)

    def test_closures_are_searched(self, dill: DillSerializer) -> None:
        lock = threading.Lock()
        with pytest.raises(SerializationError, match="closing over lock"):
            dill.dumps(lambda: lock)

    def test_pickle_names_the_lambda(self) -> None:
        with pytest.raises(SerializationError, match="lambda"):
            PickleSerializer(PickleSerializerConfig()).dumps([lambda: 1])

    def test_a_failing_repr_hides_nothing(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match="Nameless"):
            serializer.dumps(Nameless())

    def test_a_bystander_that_refuses_all_questions(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"lock .* at \[0\]\.inner"):
            serializer.dumps([HoldsLock(), Unanswering()])

    def test_a_bystander_that_has_no_name(self) -> None:
        with pytest.raises(SerializationError, match=r"function .* at \[1\] cannot"):
            PickleSerializer(PickleSerializerConfig()).dumps([Unprintable, NAMELESS[0]])

    def test_an_error_that_cannot_be_read(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"Silent .*: SilentError: <its message"):
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


class HoldsLock:
    def __init__(self) -> None:
        self.inner = threading.Lock()


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
    def __init__(self, serializer: Serializer) -> None:
        self.serializer = serializer

    @override
    def __reduce__(self) -> Any:
        inner = self.serializer.loads(self.serializer.dumps([1, 2]))
        return list, (inner,)
