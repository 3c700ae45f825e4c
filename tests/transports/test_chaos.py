"""The shipped transport that has faults."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import preloads
import pytest
from chaos_programs import use
from hypothesis import given, settings
from hypothesis import strategies as st
from reduced_transport_suite import ReducedTransportSuite
from typing_extensions import override

import pparallel
from pparallel.errors import ConfigError, PeerLostError
from pparallel.interfaces.transport import Frames, Transport, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.member import Member
from pparallel.runtime.rpc.codec import RESULTS, SERVICES
from pparallel.testing.chaos import ChaosTransportConfig, chaotic
from pparallel.testing.chaos.fates import Fates
from pparallel.testing.chaos.transport import ChaosTransport
from pparallel.testing.patience import until
from pparallel.testing.threads import in_threads
from pparallel_local import LocalTransportConfig

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


class Received:
    """A receiver that keeps what comes."""

    def __init__(self) -> None:
        self.frames: list[list[bytes]] = []
        self.resets: list[BaseException] = []

    def on_message(self, sender: str, frames: Frames) -> None:
        self.frames.append([bytes(each) for each in frames])

    def on_exchange(self, sender: str, frames: Frames) -> Frames:
        raise NotImplementedError

    def on_reset(self, name: str, error: BaseException) -> None:
        self.resets.append(error)

    def on_lost(self, name: str, reason: str) -> None: ...


NAMES = ("a", "b")
Open = Callable[..., tuple[Transport, Received, Received]]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open two members; return the transport of the first, its receiver and the other's."""
    with contextlib.ExitStack() as stack:

        def opened(**faults: float) -> tuple[Transport, Received, Received]:
            config = chaotic(LocalTransportConfig(), **faults)
            meeting = stack.enter_context(ChaosTransport.meeting(config, NAMES))
            members = [
                Member(name, n, n, 2, NAMES, meeting.address) for n, name in enumerate(NAMES)
            ]
            a, b = (ChaosTransport(config, member=each) for each in members)
            receivers = Received(), Received()
            for each in (a, b):
                stack.callback(each.close)
            in_threads(2, lambda n: (a, b)[n].open(receivers[n]))
            return a, *receivers

        yield opened


def send(transport: Transport) -> None:
    transport.send("b", [b"?", bytearray(b"!")])


def test_a_lost_message_does_not_arrive(opened: Open) -> None:
    transport, _, there = opened(drop_request=1.0)
    send(transport)
    assert there.frames == []


def test_a_lost_reply_is_a_message_of_results(opened: Open) -> None:
    transport, _, there = opened(drop_reply=1.0)
    send(transport)
    transport.send("b", [b"results" + bytes([RESULTS])])
    assert there.frames == [[b"?", b"!"]]


def test_a_broken_connection_is_reported_while_the_message_arrives(opened: Open) -> None:
    transport, here, there = opened(fail_running=1.0)
    send(transport)
    assert there.frames == [[b"?", b"!"]]
    [error] = here.resets
    assert isinstance(error, PeerLostError)
    assert "broke the connection (injected)" in str(error)
    assert sorted(transport.members()) == ["a", "b"]


def test_a_repeated_message_arrives_twice(opened: Open) -> None:
    transport, _, there = opened(duplicate=1.0)
    send(transport)
    until(lambda: there.frames == [[b"?", b"!"]] * 2, "it did not arrive twice")


def test_a_late_message_arrives_as_it_was_sent(opened: Open) -> None:
    transport, _, there = opened(delay=1.0, delay_at_most=0.1)
    memory = bytearray(b"early")
    transport.send("b", [memory])
    memory[:] = b"later"
    until(lambda: there.frames == [[b"early"]], "it did not arrive")


def test_what_the_runtime_sends_does_not_suffer_unless_it_is_to(opened: Open) -> None:
    transport, _, there = opened(drop_request=1.0)
    transport.send("b", [bytes([SERVICES])])
    assert there.frames == [[bytes([SERVICES])]]


# -- around any transport -----------------------------------------------------------------------


FAULTS = {"drop_request": 0.1, "drop_reply": 0.1, "fail_running": 0.1, "duplicate": 0.2}


def launched(transport: dict[str, Any], **faults: Any) -> list[dict[str, Any]]:
    """Have two members, threads where the transport inside allows it, use it with faults."""
    reach = default_registry().find("transport", transport["backend"]).reach
    launcher: dict[str, Any] = {"backend": "process", "preload": preloads.MEMBERS}
    if "threads" in reach:
        launcher = {"backend": "thread"}
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
