"""Members on ZeroMQ that die, stop, hang, come again, or cannot be reached."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from crew import Crew
from free_ports import free_ports
from zmq_meetings import PLACES, ends_in_time, meeting
from zmq_meetings import unwatched as unwatched
from zmq_peer import BOUND, Peer, opened, peers, transport

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.transport import Meeting
from pparallel.testing.patience import until
from pparallel_zmq import ZmqTransportConfig
from pparallel_zmq.keys import fresh


def test_a_member_that_is_killed() -> None:
    names = ["m0", "m1", "m2"]
    with meeting(names, PLACES[1]) as met, peers(names[1:], names, met) as (one, two):
        own = transport("m0", names, met)
        with opened(own) as asking:
            assert (one.opened(), two.opened()) == ("open", "open")
            waiting = asking.request("m1", [b"never"])
            errors: list[BaseException] = []

            def call() -> None:
                try:
                    asking.call("m1", [b"never"])
                except PeerLostError as error:
                    errors.append(error)

            asking.call("m1", [b"here"], 5)
            caller = threading.Thread(target=call)
            caller.start()
            os.kill(one.pid, signal.SIGKILL)
            ends_in_time(caller)
            assert "has died" in str(errors[0])
            assert isinstance(waiting.exception(5 * BOUND), PeerLostError)
            assert asking.expect("m1")
            assert own.members() == ["m0", "m2"]
            until(lambda: [each[0] for each in two.lost()] == ["m1"], "m2 was not told")
            assert two.call("m0", "still") == ["m2", "still"]
            assert len(asking.lost) == 1
            with pytest.raises(PeerLostError):
                asking.call("m1", [b"again"], 5)


def test_a_member_of_another_machine_that_is_killed(unwatched: None) -> None:
    names = ["m0", "m1"]
    with meeting(names, PLACES[1]) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own) as asking:
            assert one.opened() == "open"
            waiting = asking.request("m1", [b"never"])
            asking.call("m1", [b"here"], 5)
            os.kill(one.pid, signal.SIGKILL)
            assert isinstance(waiting.exception(5 * BOUND), PeerLostError)
            assert "cannot be reached" in asking.expect("m1")


def test_a_member_that_is_stopped_is_given_up(unwatched: None) -> None:
    """By its connection, as on another machine; by its process: in test_member_faults.py."""
    names = ["m0", "m1"]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own) as asking:
            assert one.opened() == "open"
            waiting = asking.request("m1", [b"never"])
            os.kill(one.pid, signal.SIGSTOP)
            try:
                assert isinstance(waiting.exception(5 * BOUND), PeerLostError)
                assert asking.expect("m1")
            finally:
                os.kill(one.pid, signal.SIGCONT)
            until(lambda: bool(one.lost()), "it did not find out that it was given up")
            name, reason = one.lost()[0]
            assert name == "m0"
            assert "gave this member up" in reason or "refuses" in reason or "reached" in reason


def test_what_the_queue_has_no_room_for_is_sent_later_and_in_order() -> None:
    names = ["m0", "m1"]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met, high_water_mark=10, liveness_bound=5.0)
        with opened(own) as asking:
            assert one.opened() == "open"
            asking.call("m1", [b"here"], 5)
            os.kill(one.pid, signal.SIGSTOP)
            sent = [asking.request("m1", [bytes(30_000), b"%d" % n]) for n in range(300)]
            os.kill(one.pid, signal.SIGCONT)
            replies = [int(bytes(memoryview(each.result(20)[2]))) for each in sent]
            assert replies == [*range(300)]
            assert not asking.lost


def _note(order: list[int], number: int, _: object) -> None:
    order.append(number)


def test_the_order_of_a_thread_is_kept_among_all_sizes() -> None:
    names, chance = ["m0", "m1"], random.Random(0)
    sizes = [chance.choice([1, 1, 1, 2048, 2**17, 3 * 2**20]) for _ in range(60)]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met, liveness_bound=5.0, high_water_mark=4)
        with opened(own) as asking:
            assert one.opened() == "open"
            answers = [asking.request("m1", [bytes(size)]) for size in sizes]
            order: list[int] = []
            for number, each in enumerate(answers):
                each.add_done_callback(partial(_note, order, number))
            asking.call("m1", [b"last"])
            assert order == [*range(len(sizes))]


def test_queue_of_one_message_is_enough_to_open_and_to_call() -> None:
    names = ["m0", "m1"]
    with meeting(names, PLACES[1]) as met:
        one = Peer("m1", names, met, high_water_mark=1)
        own = transport("m0", names, met, high_water_mark=1, liveness_bound=5.0)
        with ExitStack() as stack:
            stack.callback(one.end)
            asking = stack.enter_context(opened(own))
            assert one.opened() == "open"
            assert one.call("m0", "back") == ["m1", "back"]
            sent = [asking.request("m1", [b"%d" % n, bytes(2**17)]) for n in range(20)]
            assert [int(bytes(memoryview(each.result()[1]))) for each in sent] == [*range(20)]
            assert asking.call("m1", [b"here"], 5)
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


def test_who_leaves_says_so_after_what_it_has_sent() -> None:
    names = ["m0", "m1"]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met, liveness_bound=5.0)
        with opened(own) as asking:
            assert one.opened() == "open"
            waiting = [asking.request("m1", [bytes(30_000)]) for _ in range(100)]
        assert not [each for each in waiting if each.done() and each.exception()]
        until(lambda: one.lost() == [["m0", "has left"]], "it takes this member for lost")


def test_a_child_that_is_forked_uses_nothing() -> None:
    names = ["m0", "m1"]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own) as asking:
            assert one.opened() == "open"
            asking.call("m1", [b"before"], 5)
            pid = os.fork()
            if pid == 0:
                try:
                    own.send("m1", [b"in the child"])
                except ClosedError:
                    own.close()
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert asking.call("m1", [b"after"], 5)
