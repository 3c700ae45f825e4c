"""The shipped transport that has faults."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import preloads
import pytest
from chaos_programs import use
from hypothesis import given, settings
from hypothesis import strategies as st
from member_pairs import pair
from reduced_transport_suite import ReducedTransportSuite
from typing_extensions import override

import pparallel
from pparallel.errors import ConfigError, PeerLostError
from pparallel.interfaces.transport import TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.rpc.codec import RESULTS, SERVICES
from pparallel.testing.chaos import ChaosTransportConfig, chaotic
from pparallel.testing.chaos.fates import Fates
from pparallel_local import LocalTransportConfig


class TestWithoutFaults(ReducedTransportSuite):
    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return chaotic(LocalTransportConfig())


@settings(max_examples=20)
@given(st.integers(), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_the_same_seed_gives_the_same_faults(seed: int, chances: list[float]) -> None:
    faults = ("drop_request", "drop_reply", "fail_running", "duplicate", "delay")
    config = chaotic(LocalTransportConfig(), seed=seed, **dict(zip(faults, chances, strict=True)))
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


#: messages of calls, of results and of the runtime itself
CALLS, REPLIES, OWN = b"a call", b"results" + bytes([RESULTS]), bytes([SERVICES])


@pytest.mark.parametrize(
    ("fault", "arrived"),
    [
        ("drop_request", [REPLIES, OWN]),
        ("drop_reply", [CALLS, OWN]),
        ("duplicate", [CALLS, CALLS, REPLIES, REPLIES, OWN]),
    ],
)
def test_messages_are_lost_and_repeated_by_what_they_hold(fault: str, arrived: list[bytes]) -> None:
    with pair(chaotic(LocalTransportConfig(), **{fault: 1.0})) as there:
        for each in (CALLS, REPLIES, OWN):
            there.a.send("b", [each])
        assert sorted(there.at_b.has(len(arrived))) == sorted([each] for each in arrived)


def test_a_broken_connection_is_reported_while_the_message_arrives() -> None:
    with pair(chaotic(LocalTransportConfig(), fail_running=1.0)) as there:
        resets: list[BaseException] = []

        def note(name: str, error: BaseException) -> None:
            resets.append(error)

        there.at_a.on_reset = note  # type: ignore[method-assign]
        there.a.send("b", [CALLS])
        assert there.at_b.has(1) == [[CALLS]]
        [error] = resets
        assert isinstance(error, PeerLostError)
        assert "broke the connection (injected)" in str(error)
        assert sorted(there.a.members()) == ["a", "b"]


def test_a_late_message_arrives_as_it_was_sent() -> None:
    with pair(chaotic(LocalTransportConfig(), delay=1.0, delay_at_most=0.1)) as there:
        memory = bytearray(b"early")
        there.a.send("b", [memory])
        memory[:] = b"later"
        assert there.at_b.has(1) == [[b"early"]]


# -- around any transport -----------------------------------------------------------------------


FAULTS = {"drop_request": 0.1, "drop_reply": 0.1, "fail_running": 0.1, "duplicate": 0.2}
ITSELF = {"backend": "chaos", "transport": {"backend": "local"}, **FAULTS}


@pytest.mark.parametrize(
    "inside", ["local", "zmq", "torch_rpc", ITSELF], ids=["local", "zmq", "torch_rpc", "itself"]
)
def test_around_every_transport(inside: Any) -> None:
    nested = inside if isinstance(inside, dict) else {"backend": inside}
    launcher: dict[str, Any] = {"backend": "thread"}
    if "threads" not in default_registry().find("transport", nested["backend"]).reach:
        launcher = {"backend": "process", "preload": preloads.MEMBERS}
    chaos = {"backend": "chaos", "transport": nested, "retry_after": 0.02, **FAULTS}
    raw = {"members": 2, "launcher": launcher, "transport": chaos, "reducer": {"backend": "local"}}
    first, other = pparallel.launch(raw, use)
    assert {first["class"], other["class"]} == {"ChaosTransport"}
    assert sorted(first["members"]) == sorted(other["members"]) == ["member-0", "member-1"]
    assert first["sync"] == first["async"] == [n / 2 for n in range(30)]
    assert first["large"] == 500_000


def test_around_one_that_cannot_be_where_the_members_are() -> None:
    chaos = {"backend": "chaos", "transport": {"backend": "local"}}
    raw = {"members": 2, "launcher": {"backend": "process"}, "transport": chaos}
    with pytest.raises(ConfigError, match="'local' works among threads only") as caught:
        pparallel.launch(raw, use)
    assert "transport.transport.backend" in str(caught.value)
