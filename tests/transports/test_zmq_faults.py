"""Members on ZeroMQ that die, stop, hang, come again, or cannot be reached."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from crew import Crew
from free_ports import free_ports
from zmq_peer import BOUND, PLACES, Peer, job, meeting, opened, transport

from pparallel.errors import CallTimeoutError, PeerLostError
from pparallel.interfaces.transport import Meeting
from pparallel.runtime.links.process import ProcessId
from pparallel.testing.patience import until
from pparallel_zmq import ZmqTransportConfig
from pparallel_zmq.keys import fresh


@pytest.fixture
def _unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have members judged by their connections alone, as on another machine."""
    monkeypatch.setattr(ProcessId, "watchable", property(lambda _: False))


@pytest.mark.usefixtures("_unwatched")
def test_a_member_of_another_machine_that_is_killed() -> None:
    with job(PLACES[1], count=3) as (own, _, (one, two)):
        waiting = own.request("m1", [b"never"])
        own.call("m1", [b"here"], 5)
        os.kill(one.pid, signal.SIGKILL)
        assert isinstance(waiting.exception(5 * BOUND), PeerLostError)
        assert "cannot be reached" in own.expect("m1")
        assert own.own.members() == ["m0", "m2"]
        until(lambda: [each[0] for each in two.lost()] == ["m1"], "m2 was not told")
        assert two.call("m0", "still") == ["m2", "still"]
        with pytest.raises(PeerLostError):
            own.call("m1", [b"again"], 5)


@pytest.mark.usefixtures("_unwatched")
def test_a_member_that_is_stopped_is_given_up() -> None:
    """By its connection, as on another machine; by its process: in test_member_faults.py."""
    with job() as (own, _, (one,)):
        waiting = own.request("m1", [b"never"])
        os.kill(one.pid, signal.SIGSTOP)
        try:
            assert isinstance(waiting.exception(5 * BOUND), PeerLostError)
            assert own.expect("m1")
        finally:
            os.kill(one.pid, signal.SIGCONT)
        until(lambda: bool(one.lost()), "it did not find out that it was given up")
        name, reason = one.lost()[0]
        assert name == "m0"
        assert "gave this member up" in reason or "refuses" in reason or "reached" in reason


def test_what_the_queue_has_no_room_for_is_sent_later_and_in_order() -> None:
    with job(high_water_mark=10, liveness_bound=5.0) as (own, _, (one,)):
        own.call("m1", [b"here"], 5)
        os.kill(one.pid, signal.SIGSTOP)
        sent = [own.request("m1", [bytes(30_000), b"%d" % n]) for n in range(300)]
        os.kill(one.pid, signal.SIGCONT)
        assert [int(bytes(each.result(20)[2])) for each in sent] == [*range(300)]
        assert not own.lost


def _note(order: list[int], number: int, _: object) -> None:
    order.append(number)


def test_the_order_of_a_thread_is_kept_among_all_sizes() -> None:
    chance = random.Random(0)
    sizes = [chance.choice([1, 1, 1, 2048, 2**17, 3 * 2**20]) for _ in range(60)]
    with job(liveness_bound=5.0, high_water_mark=4) as (own, *_):
        answers = [own.request("m1", [bytes(size)]) for size in sizes]
        order: list[int] = []
        for number, each in enumerate(answers):
            each.add_done_callback(partial(_note, order, number))
        own.call("m1", [b"last"])
        assert order == [*range(len(sizes))]


def test_queue_of_one_message_is_enough_to_open_and_to_call() -> None:
    names = ["m0", "m1"]
    with meeting(names, PLACES[1]) as met, ExitStack() as stack:
        one = Peer("m1", names, met, high_water_mark=1)
        stack.callback(one.end)
        own = transport("m0", names, met, high_water_mark=1, liveness_bound=5.0)
        asking = stack.enter_context(opened(own))
        assert one.opened() == "open"
        assert one.call("m0", "back") == ["m1", "back"]
        sent = [asking.request("m1", [b"%d" % n, bytes(2**17)]) for n in range(20)]
        assert [int(bytes(each.result()[1])) for each in sent] == [*range(20)]
        assert not asking.lost


def test_the_first_member_is_missing() -> None:
    names = ["m0", "m1"]
    with meeting(names, PLACES[1]) as met:
        own = transport("m1", names, met, rendezvous_timeout=0.5)
        with pytest.raises(CallTimeoutError, match=rf"'m0' at {met.address}"), opened(own):
            pass


def test_members_that_torchrun_starts_meet_in_its_store(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    met = Meeting(f"torchrun://127.0.0.1:{free_ports()[0]}/job/0", fresh(["a", "b"]))
    members = Crew(tmp_path, ZmqTransportConfig(), ["a", "b"], met)
    try:
        members.note("go on").touch()
        members.start("a", "calls_after", "b", members.note("go on"))
        members.start("b", "calls_after", "a", members.note("go on"))
        assert [members.answer(name)[0] for name in "ab"] == [3, 3]
    finally:
        members.close()
