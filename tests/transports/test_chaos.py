"""The shipped transport that has faults."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal
from unittest.mock import Mock

import pytest
from chaos_programs import use
from hypothesis import given, settings
from hypothesis import strategies as st
from reduced_transport_suite import ReducedTransportSuite
from typing_extensions import override

import pparallel
from pparallel.errors import CallTimeoutError, ClosedError, ConfigError, PeerLostError
from pparallel.interfaces.request_transport import RequestTransport
from pparallel.interfaces.transport import Frames, TransportConfig
from pparallel.registry import Registry, default_registry
from pparallel.testing.chaos import ChaosTransportConfig, chaotic
from pparallel.testing.chaos import transport as chaos_transport
from pparallel.testing.chaos.fates import Fates
from pparallel.testing.chaos.transport import ChaosTransport
from pparallel.testing.patience import until
from pparallel_local import LocalTransportConfig
from pparallel_local.transport import LocalTransport

CHANCE = st.floats(0, 1)


class TestWithoutFaults(ReducedTransportSuite):
    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return chaotic(LocalTransportConfig())


@settings(max_examples=20)
@given(st.integers(), CHANCE, CHANCE, CHANCE, CHANCE, CHANCE)
def test_the_same_seed_gives_the_same_faults(
    seed: int, drop: float, reply: float, broken: float, twice: float, late: float
) -> None:
    config = chaotic(
        LocalTransportConfig(),
        seed=seed,
        drop_request=drop,
        drop_reply=reply,
        fail_running=broken,
        duplicate=twice,
        delay=late,
    )
    one, other = Fates(config, "a"), Fates(config, "a")
    fates = [one.draw() for _ in range(20)]
    assert fates == [other.draw() for _ in range(20)]
    without = Fates(config.model_copy(update={"duplicate": 0.0}), "a")
    assert [each._replace(again=None) for each in fates] == [without.draw() for _ in range(20)]


def test_faults_come_as_often_as_is_said() -> None:
    config = chaotic(
        LocalTransportConfig(), drop_request=0.1, drop_reply=0.2, fail_running=0.3, delay=0.4
    )
    fates = [each.draw() for each in [Fates(config, "a")] for _ in range(2000)]
    ends = Counter(each.end for each in fates)
    assert 150 < ends["request lost"] < 250
    assert 330 < ends["reply lost"] < 470
    assert 520 < ends["broken"] < 680
    assert 700 < sum(each.delay > 0 for each in fates) < 900
    assert all(each.delay <= config.delay_at_most and each.again is None for each in fates)


def test_a_config_describes_it() -> None:
    nested = {"backend": "local", "rendezvous_timeout": 3}
    raw = {"backend": "chaos", "drop_request": 0.5, "transport": nested}
    config = pparallel.load({"transport": raw}).transport
    assert isinstance(config, ChaosTransportConfig)
    assert config.transport == LocalTransportConfig(rendezvous_timeout=3)
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ConfigError, match="transport"):
        pparallel.load({"transport": {"backend": "chaos"}})


def test_a_config_inside_says_what_it_said_before() -> None:
    inside = LocalTransportConfig(timeout=3.0, handler_threads=2)
    config = chaotic(inside, seed=1, handler_threads=4)
    assert (config.timeout, config.handler_threads, config.transport) == (3.0, 4, inside)


class Heard:
    """A handler that counts."""

    def __init__(self) -> None:
        self.frames: list[list[bytes]] = []

    def __call__(self, sender: str, frames: Frames) -> Frames:
        self.frames.append([bytes(each) for each in frames])
        return [b"answer"]


Open = Callable[..., tuple[RequestTransport, Heard]]


@pytest.fixture
def opened() -> Iterator[Open]:
    transports: list[RequestTransport] = []

    def opened(**faults: float) -> tuple[RequestTransport, Heard]:
        config = chaotic(LocalTransportConfig(), **faults)
        transport, heard = pparallel.build(config), Heard()
        transports.append(transport)
        transport.open(heard)
        return transport, heard

    yield opened
    for each in transports:
        each.close()


def send(transport: RequestTransport, timeout: float = 0.02) -> Future[Frames]:
    return transport.request(transport.name, [b"?", bytearray(b"!")], timeout)


def test_a_lost_request_is_not_handled(opened: Open) -> None:
    transport, heard = opened(drop_request=1.0)
    with pytest.raises(CallTimeoutError):
        send(transport).result(10)
    with pytest.raises(CallTimeoutError):
        transport.call(transport.name, [b"?"], 0.02)
    assert heard.frames == []


def test_a_lost_reply_is_to_a_request_that_was_handled(opened: Open) -> None:
    transport, heard = opened(drop_reply=1.0)
    with pytest.raises(CallTimeoutError):
        send(transport).result(10)
    assert heard.frames == [[b"?", b"!"]]


def test_a_broken_connection_is_told_while_the_request_runs(opened: Open) -> None:
    transport, heard = opened(fail_running=1.0)
    with pytest.raises(PeerLostError, match=r"broke the connection \(injected\)"):
        send(transport, 10).result(10)
    assert heard.frames == [[b"?", b"!"]]
    assert transport.members() == [transport.name]


def test_a_repeated_request_is_handled_twice(opened: Open) -> None:
    transport, heard = opened(duplicate=1.0)
    assert send(transport, 10).result(10) == [b"answer"]
    until(lambda: heard.frames == [[b"?", b"!"]] * 2, "it did not arrive twice")


def test_a_late_request_arrives_as_it_was_sent(opened: Open) -> None:
    transport, heard = opened(delay=1.0, delay_at_most=0.1)
    memory = bytearray(b"early")
    answer = transport.request(transport.name, [memory], 0.0001)
    assert isinstance(answer.exception(10), CallTimeoutError)
    memory[:] = b"later"
    until(lambda: heard.frames == [[b"early"]], "it did not arrive")


def test_close_ends_what_waits_in_vain(opened: Open) -> None:
    transport, _ = opened(drop_request=1.0)
    waiting = send(transport, 60)
    transport.close()
    assert isinstance(waiting.exception(10), ClosedError)


# -- around any transport -----------------------------------------------------------------------


FAULTS = {"drop_request": 0.1, "drop_reply": 0.1, "fail_running": 0.1, "duplicate": 0.2}


def launched(transport: dict[str, Any], **faults: Any) -> list[dict[str, Any]]:
    """Have two members, threads where the transport inside allows it, use it with faults."""
    reach = default_registry().find("transport", transport["backend"]).reach
    launcher = {"backend": "thread" if "threads" in reach else "process"}
    chaos = {"backend": "chaos", "transport": transport, "retry_after": 0.02, **faults}
    raw = {"members": 2, "launcher": launcher, "transport": chaos, "reducer": {"backend": "local"}}
    return pparallel.launch(raw, use, (bool(faults),))


def check(told: list[dict[str, Any]], faults: bool) -> None:
    first, other = told
    assert {first["class"], other["class"]} == {"ChaosTransport"}
    assert sorted(first["members"]) == sorted(other["members"]) == ["member-0", "member-1"]
    assert first["sync"] == first["async"] == [n / 2 for n in range(30)]
    assert first["large"] == 500_000
    if not faults:
        assert first["remote"] == [0, 1, 3, 6, 10]
        assert first["once"] == first["sync"]


@pytest.mark.parametrize("backend", ["local", "zmq", "torch_rpc"])
def test_around_every_transport(backend: str) -> None:
    check(launched({"backend": backend}, **FAULTS), faults=True)


@pytest.mark.parametrize("backend", ["local", "ipc"])
def test_what_is_sent_once(backend: str) -> None:
    check(launched({"backend": backend}), faults=False)


def test_around_itself() -> None:
    inside = {"backend": "chaos", "transport": {"backend": "ipc"}, **FAULTS}
    check(launched(inside, delay=0.2, delay_at_most=0.005), faults=True)


def test_around_one_that_cannot_be_where_the_members_are() -> None:
    chaos = {"backend": "chaos", "transport": {"backend": "local"}}
    raw = {"members": 2, "launcher": {"backend": "process"}, "transport": chaos}
    with pytest.raises(ConfigError, match="'local' works among threads only") as caught:
        pparallel.launch(raw, use, (True,))
    assert "transport.transport.backend" in str(caught.value)


class ShelfTransportConfig(TransportConfig, frozen=True):
    backend: Literal["shelf"] = "shelf"


class ShelfTransport(LocalTransport):
    """What a third party may have written: it does all that a transport may do besides."""

    used: ClassVar[list[str]] = []

    @override
    def send(self, to: str, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        self.used.append("send")
        super().send(to, frames, timeout, future)

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        self.used.append("call")
        return super().call(to, frames, timeout)

    @override
    def awaiting(
        self, to: str, is_done: Callable[[], bool], timeout: float | None
    ) -> AbstractContextManager[object]:
        self.used.append("awaiting")
        return super().awaiting(to, is_done, timeout)

    def arena(self, of: str) -> None:
        self.used.append("arena")


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> TransportConfig:
    """The config of a transport that was installed besides."""
    registry = Mock(Registry)
    registry.load.return_value = ShelfTransport
    monkeypatch.setattr(chaos_transport, "default_registry", lambda: registry)
    return ShelfTransportConfig()


def test_what_a_transport_does_besides_is_passed_on(shelf: TransportConfig) -> None:
    heard = Heard()
    ShelfTransport.used.clear()
    transport = pparallel.build(chaotic(shelf))
    assert isinstance(transport, ChaosTransport)
    transport.open(heard)
    with contextlib.closing(transport):
        future: Future[Frames] = Future()
        transport.send(transport.name, [b"?"], 10, future)
        with transport.awaiting(transport.name, future.done, 10):
            assert future.result(10) == [b"answer"]
        assert transport.call(transport.name, [b"?"], 10) == [b"answer"]
        assert transport.arena(transport.name) is None
    assert ShelfTransport.used == ["send", "awaiting", "call", "arena"]
