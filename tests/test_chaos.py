"""The shipped transport that has faults."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

import pparallel
from pparallel.errors import CallTimeoutError, ClosedError, ConfigError, PeerLostError
from pparallel.interfaces.transport import Frames, Transport, TransportConfig
from pparallel.testing import TransportSuite
from pparallel.testing.chaos import ChaosTransportConfig, chaotic
from pparallel.testing.chaos.fates import Fates
from pparallel.testing.patience import until
from pparallel_local import LocalTransportConfig

CHANCE = st.floats(0, 1)


@pytest.mark.costly
class TestWithoutFaults(TransportSuite):
    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return chaotic(LocalTransportConfig())


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


Open = Callable[..., tuple[Transport, Heard]]


@pytest.fixture
def opened() -> Iterator[Open]:
    transports: list[Transport] = []

    def opened(**faults: float) -> tuple[Transport, Heard]:
        config = chaotic(LocalTransportConfig(), **faults)
        transport, heard = pparallel.build(config), Heard()
        transports.append(transport)
        transport.open(heard)
        return transport, heard

    yield opened
    for each in transports:
        each.close()


def send(transport: Transport, timeout: float = 0.02) -> Future[Frames]:
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


def half(value: float) -> float:
    return value / 2


def use(rt: pparallel.Runtime) -> list[float]:
    group = rt.group()
    if rt.rank == 1:
        group.barrier()
        return []
    found = [group.rpc_sync(1, half, args=(n,), idempotent=True) for n in range(40)]
    group.barrier()
    return found


def test_a_job_survives_it() -> None:
    transport = {
        "backend": "chaos",
        "retry_after": 0.01,
        "drop_request": 0.1,
        "drop_reply": 0.1,
        "duplicate": 0.2,
        "transport": {"backend": "local"},
    }
    results = pparallel.launch({"members": 2, "transport": transport}, use)
    assert results[0] == [n / 2 for n in range(40)]
