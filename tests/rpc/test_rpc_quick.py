"""The quick form of calls, with what travels beside it, is as good as the long one."""

from __future__ import annotations

import marshal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pparallel
from pparallel import Runtime
from pparallel.errors import SerializationError
from pparallel.runtime.rpc import wire
from pparallel.runtime.rpc.quick import Quick
from pparallel.runtime.rpc.refs import Registered
from pparallel.runtime.rpc.requests import Requests
from pparallel.runtime.rpc.wire import QUICK, Kind
from pparallel.testing.patience import PATIENCE
from pparallel_serializers import DillSerializerConfig, SafeSerializerConfig

SERIALIZER = pparallel.build(DillSerializerConfig())

plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.binary(max_size=3)
)
shapes = st.lists(st.integers(0, 300), max_size=2)
data = st.one_of(
    shapes.map(lambda shape: torch.arange(float(torch.Size(shape).numel())).view(shape)),
    st.lists(plain, max_size=3),
    st.dictionaries(plain, plain, max_size=2),
    st.tuples(plain, plain),
    st.sets(st.integers(), max_size=2),
)


def given_back(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def requests(config: Any = None) -> Requests:
    serializer = pparallel.build(config or DillSerializerConfig())
    return Requests(serializer, Quick(serializer), ["a", "b"])


def alike(one: Any, other: Any) -> bool:
    """Return whether values are equal, tensors in all that they hold."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and alike([*one.values()], [*other.values()])
    return bool(one == other)


def run(frames: Sequence[Any]) -> Any:
    """Return what comes of a request where it arrives: what is sent is copied on its way."""
    arrived = [each if type(each) is bytes else bytearray(each) for each in frames]
    reply = Quick(SERIALIZER).run(arrived)
    assert reply is not None, "it is not of a function by its name"
    message = wire.split(reply)
    if message.flags & QUICK:
        return Quick(SERIALIZER).read(message.body[0])
    return SERIALIZER.loads(message.body)


@given(
    args=st.lists(st.one_of(plain, data), max_size=4).map(tuple),
    kwargs=st.dictionaries(st.sampled_from("xyz"), plain, max_size=2),
)
def test_arguments_arrive_as_they_were(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    frames = requests().call("b", given_back, args, kwargs)
    message = wire.split(frames)
    assert (message.kind, message.flags, message.number) == (Kind.CALL, QUICK, 0)
    assert message.thread == threading.get_ident()
    assert not message.buffers
    assert b"given_back" in bytes(message.body[0])
    assert all(b"given_back" not in bytes(memoryview(each)) for each in message.body[1:])
    assert alike(run(frames), (args, kwargs))


def test_what_is_shared_among_arguments_is_shared_there() -> None:
    one = torch.zeros(1000)
    frames = requests().call("b", given_back, (one, one[:10], [one]), None)
    (whole, part, (again,)), _ = run(frames)
    whole.fill_(3)
    assert float(part.sum()) == 30
    assert again is whole


def test_a_list_of_arguments() -> None:
    frames = requests().call("b", given_back, [torch.ones(2), 1], {})
    assert alike(run(frames), ((torch.ones(2), 1), {}))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {"x": torch.ones(2)}), ((1,), {"x": [1]}), ((torch.ones(1000),), {"x": torch.ones(2)})],
)
def test_named_arguments_that_are_not_plain_have_the_long_form(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    message = wire.split(requests().call("b", given_back, args, kwargs))
    assert not message.flags & QUICK
    function, there, named = SERIALIZER.loads(message.body)
    assert alike(function(*there, **named), (args, kwargs))


@pytest.mark.parametrize("what", [given_back, lambda *args: args, Registered("world", "key")])
def test_what_cannot_be_sent_is_named(what: Any) -> None:
    with pytest.raises(SerializationError, match=r"^args\[0\] \(threading.Lock\)"):
        requests().call("b", what, (threading.Lock(),), None)


def test_a_serializer_that_sends_no_functions_has_no_quick_form() -> None:
    found = requests(SafeSerializerConfig())
    message = wire.split(found.call("b", Registered("world", "key"), (torch.ones(2),), None))
    assert not message.flags & QUICK


def total(start: float, *tensors: torch.Tensor) -> float:
    return start + sum(float(each.sum()) for each in tensors)


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "kwargs", [{}, MappingProxyType({}), MappingProxyType({"x": 1}), {Word("x"): 1}]
)
def test_any_mapping_may_hold_the_named_arguments(kwargs: Mapping[str, Any]) -> None:
    frames = requests().call("b", given_back, (1,), kwargs)
    message = wire.split(frames)
    if message.flags & QUICK:
        assert alike(run(frames), ((1,), dict(kwargs)))
    else:
        function, there, named = SERIALIZER.loads(message.body)
        assert function(*there, **named) == ((1,), dict(kwargs))


def test_what_is_small() -> None:
    quick, safe = Quick(SERIALIZER), Quick(pparallel.build(SafeSerializerConfig()))
    for args, kwargs in [((1, "x"), None), ((), {"x": b"1"}), ((2**64,), {}), ((), None)]:
        assert quick.is_small(args, kwargs, 100)
        assert not quick.is_small(args, kwargs, 3)
        assert not safe.is_small(args, kwargs, 100)
    for much in [(bytes(100),), ("x" * 100,), (2**1000,), tuple(range(50))]:
        assert not quick.is_small(much, None, 100)
        assert quick.is_small((), dict(zip("xyz", much, strict=False)), 100) is (len(much) > 1)
    for other in [([],), (torch.ones(1),), [1]]:
        assert not quick.is_small(other, None, 100)
    assert not quick.is_small((), {"x": []}, 100)
    assert quick.name(cast("FunctionType", lambda: None)) is None


def test_between_members() -> None:
    def program(rt: Runtime) -> None:
        group = rt.group()
        if rt.rank == 1:
            group.register("total", total)
        group.barrier(PATIENCE)
        if rt.rank == 0:
            tensors = [torch.full((n,), 1.0) for n in (3, 700, 100_000)]
            factor = 2.0
            calls: list[tuple[Callable[[], Any], float]] = [
                (lambda: group.rpc_sync(1, total, args=(1.0, *tensors)), 100704.0),
                (lambda: group.rpc_async(1, total, args=(1.0, *tensors)).wait(), 100704.0),
                (lambda: group.remote(1, total, args=(1.0, *tensors)).to_here(), 100704.0),
                (lambda: group.registered_sync("total", args=(1.0, *tensors)), 100704.0),
                (lambda: group.rpc_sync(1, total, args=(1.0, *tensors), idempotent=True), 100704.0),
                (lambda: group.rpc_sync(1, lambda x: x.sum() * factor, args=(tensors[2],)), 2e5),
            ]
            for call, expected in calls:
                for _ in range(3):
                    assert float(call()) == expected
            with pytest.raises(AttributeError, match="sum"):
                group.rpc_sync(1, total, args=(1.0, [tensors[0]]))
        group.barrier(PATIENCE)

    assert pparallel.launch({"members": 2}, program) == [None] * 2


@pytest.mark.parametrize("backend", ["local", "ipc"])
def test_bytes_that_marshal_refuses_are_sent(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it refuses bytes of 2 GiB and more, for which these stand."""
    dumps, most = marshal.dumps, 100_000

    def refuse(value: Any, version: int = marshal.version) -> bytes:
        written = dumps(value, version)
        if len(written) > most:
            raise ValueError("unmarshallable object")
        return written

    monkeypatch.setattr(marshal, "dumps", refuse)

    def program(rt: Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            assert group.rpc_sync(1, bytes, PATIENCE, (most,)) == bytes(most)
            assert group.rpc_async(1, given_back, PATIENCE, (bytes(most),)).wait()[0] == (
                bytes(most),
            )
            assert group.rpc_sync(1, given_back, PATIENCE, (), {"x": bytes(most)})[1] == {
                "x": bytes(most)
            }
        group.barrier(PATIENCE)

    job = {"members": 2, "launcher": {"backend": "thread"}, "transport": {"backend": backend}}
    assert pparallel.launch(job, program) == [None] * 2
