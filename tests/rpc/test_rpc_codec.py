"""Calls, results and errors on their way."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pparallel
from pparallel.errors import SerializationError
from pparallel.runtime.rpc.codec import (
    CALL,
    CALLS,
    IS_PLAIN,
    SERVICES,
    Codec,
    kind_of,
)
from pparallel_serializers import DillSerializerConfig, SafeSerializerConfig

PLAIN_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.complex_numbers(allow_nan=False),
)


def of(config: Any) -> Codec:
    return Codec(pparallel.build(config), "me")


DILL, SAFE = of(DillSerializerConfig()), of(SafeSerializerConfig())


def there(value: Any) -> Any:
    return value


class Own(str):
    __slots__ = ()


def repr_of_type(value: object) -> str:
    return type(value).__name__


def carried(codec: Codec, what: Any, args: Any, kwargs: Any = None) -> tuple[Any, Any, Any]:
    flags, data, frames, _ = codec.call(what, args, kwargs)
    item = (CALL, 1, 2, 0.0, flags, None, data, len(frames))
    head = codec.head([0, item], CALLS)
    assert kind_of([head]) == CALLS
    [_, found] = codec.items(bytearray(head))
    assert found == item
    return codec.read_call(found[4], found[6], [bytearray(each) for each in frames])


@given(st.lists(PLAIN_VALUES).map(tuple), st.dictionaries(st.text(), PLAIN_VALUES))
def test_plain_arguments_arrive_in_the_head(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    flags, data, frames, _ = DILL.call(there, args, kwargs)
    assert flags == IS_PLAIN
    assert (data is None) == bool(frames)
    assert carried(DILL, there, args, kwargs) == (there, args, kwargs)


@pytest.mark.parametrize(
    "kwargs", [{}, None, {"a": [1]}, {Own("a"): 1}, {"a": Own("b")}, MappingProxyType({"a": 1})]
)
def test_named_arguments(kwargs: Any) -> None:
    found = carried(DILL, there, (1,), kwargs)
    assert found == (there, (1,), dict(kwargs or {}))
    types = [(type(key), type(value)) for key, value in found[2].items()]
    assert types == [(type(key), type(value)) for key, value in (kwargs or {}).items()]


def test_what_is_shared_among_arguments_is_shared_there() -> None:
    shared = [1]
    _, args, kwargs = carried(DILL, there, (shared, shared), {"again": shared})
    assert args[0] is args[1] is kwargs["again"]


def test_arguments_are_those_of_the_moment_of_the_call() -> None:
    kwargs = {"a": 1}
    _, data, _, _ = DILL.call(there, (), kwargs)
    kwargs["a"] = 2
    assert data is not None
    assert data[2] == {"a": 1}


@pytest.mark.parametrize("codec", [DILL, SAFE], ids=["dill", "safe"])
@pytest.mark.parametrize(
    "value",
    [None, True, 1, -(2**70), 2**100_000, 1.5, "word", b"x" * 9999, (1, "two"), [1, {}]],
    ids=repr_of_type,
)
def test_results_come_back_as_they_were(codec: Codec, value: Any) -> None:
    item, frames = codec.result(1, value)
    [_, item] = codec.items(codec.head([0, item], CALLS))
    found, rest = codec.read_result(item, [bytes(each) for each in frames])
    assert (found, type(found), list(rest)) == (value, type(value), [])


def test_a_serializer_of_data_alone_sends_and_runs_no_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("pickle was used")

    assert DILL.trusts
    flags, data, frames, _ = DILL.call(there, (1,), None)
    for name in ("dumps", "loads"):
        monkeypatch.setattr(pickle, name, refuse)
    with pytest.raises(SerializationError):
        SAFE.call(there, (1,), None)
    for data_there in (data, None):
        with pytest.raises(SerializationError):
            SAFE.read_call(flags, data_there, [*frames, b""])


@pytest.mark.parametrize("head", [b"", b"s", b"what is this", b"\x01\x00\x00\x00\xff" * 9])
@pytest.mark.parametrize("codec", [DILL, SAFE], ids=["dill", "safe"])
def test_what_is_no_head_is_refused(codec: Codec, head: bytes) -> None:
    with pytest.raises(SerializationError):
        codec.items(head)


def test_kinds() -> None:
    assert [kind_of(each) for each in ([], [b""], [bytearray(b"xs")])] == [0, 0, SERVICES]


def test_a_function_that_is_not_there_is_named() -> None:
    for name in (("no_such_module", "f"), (__name__, "no_such_function")):
        with pytest.raises(SerializationError, match=f"function {'.'.join(name)}"):
            DILL.function(name)


def test_what_a_name_stands_for_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = there
    assert DILL.name(before) == (__name__, "there")
    monkeypatch.setattr(sys.modules[__name__], "there", lambda value: -value)
    assert DILL.name(before) is None
    assert carried(DILL, before, (3,))[0](3) == 3


def test_what_cannot_be_called_is_refused() -> None:
    frames = DILL.serializer.dumps((5, (), {}))
    with pytest.raises(TypeError, match="int is neither a function"):
        DILL.read_call(0, None, frames)


def test_an_error_that_cannot_be_sent_is_an_error_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    codec = of(DillSerializerConfig())

    def refuse(_: object) -> Mapping[str, Any]:
        raise MemoryError

    monkeypatch.setattr(codec.serializer, "dumps", refuse)
    item, frames = codec.failed(1, LookupError("far away"))
    found = codec.error(item, frames, "m1")
    assert "could not be sent; the log of me has it" in str(found)
    assert "far away" in caplog.text
