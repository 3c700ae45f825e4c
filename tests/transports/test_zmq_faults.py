"""Members on ZeroMQ that die, stop, hang, come again, or cannot be reached."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack

import pytest
from zmq_meetings import PLACES, ends_in_time, meeting
from zmq_meetings import unwatched as unwatched
from zmq_peer import BOUND, Peer, opened, peers, transport

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.transport import Meeting
from pparallel.testing.patience import until
from pparallel_zmq.keys import fresh


@pytest.mark.parametrize("place", PLACES)
def test_a_member_that_is_killed(place: str) -> None:
    names = ["m0", "m1", "m2"]
    with meeting(names, place) as met, peers(names[1:], names, met) as (one, two):
        own = transport("m0", names, met)
        with opened(own) as heard:
            assert (one.opened(), two.opened()) == ("open", "open")
            waiting = own.request("m1", [b"never"])
            errors: list[BaseException] = []

            def call() -> None:
                try:
                    own.call("m1", [b"never"])
                except PeerLostError as error:
                    errors.append(error)

            own.call("m1", [b"here"], 5)
            caller = threading.Thread(target=call)
            caller.start()
            time.sleep(0.1)
            os.kill(one.pid, signal.SIGKILL)
            ends_in_time(caller)
            assert "has died" in str(errors[0])
            assert isinstance(waiting.exception(BOUND), PeerLostError)
            assert heard.expect("m1")
            assert own.members() == ["m0", "m2"]
            until(lambda: [each[0] for each in two.lost()] == ["m1"], "m2 was not told")
            assert two.call("m0", "still") == ["m2", "still"]
            assert len(heard.all) == 1
            with pytest.raises(PeerLostError):
                own.call("m1", [b"again"], 5)


def test_a_member_of_another_machine_that_is_killed(unwatched: None) -> None:
    names = ["m0", "m1"]
    with meeting(names, PLACES[1]) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own) as heard:
            assert one.opened() == "open"
            waiting = own.request("m1", [b"never"])
            own.call("m1", [b"here"], 5)
            os.kill(one.pid, signal.SIGKILL)
            assert isinstance(waiting.exception(BOUND + 1), PeerLostError)
            assert "cannot be reached" in heard.expect("m1")


def test_the_first_member_is_killed() -> None:
    names = ["m0", "m1", "m2"]
    with meeting(names) as met, peers(["m0", "m2"], names, met) as (first, other):
        own = transport("m1", names, met)
        with opened(own) as heard:
            assert (first.opened(), other.opened()) == ("open", "open")
            waiting = own.request("m0", [b"never"])
            os.kill(first.pid, signal.SIGKILL)
            assert isinstance(waiting.exception(BOUND + 1), PeerLostError)
            assert heard.expect("m0")
            until(lambda: [each[0] for each in other.lost()] == ["m0"], "m2 did not see it")


@pytest.mark.parametrize("watched", [True, False], ids=["by its process", "by its connection"])
def test_a_member_that_is_stopped_is_given_up(
    watched: bool, request: pytest.FixtureRequest
) -> None:
    if not watched:
        request.getfixturevalue("unwatched")
    names = ["m0", "m1"]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own) as heard:
            assert one.opened() == "open"
            waiting = own.request("m1", [b"never"])
            os.kill(one.pid, signal.SIGSTOP)
            began = time.monotonic()
            try:
                assert isinstance(waiting.exception(3 * BOUND), PeerLostError)
                assert time.monotonic() - began < BOUND + 0.5
                assert heard.expect("m1")
            finally:
                os.kill(one.pid, signal.SIGCONT)
            until(lambda: bool(one.lost()), "it did not find out that it was given up")
            name, reason = one.lost()[0]
            assert name == "m0"
            assert "gave this member up" in reason or "refuses" in reason or "reached" in reason


def test_a_member_that_stops_for_less_is_kept() -> None:
    names = ["m0", "m1"]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own) as heard:
            assert one.opened() == "open"
            os.kill(one.pid, signal.SIGSTOP)
            later = own.request("m1", [b"later"], 10)
            time.sleep(BOUND * 0.5)
            os.kill(one.pid, signal.SIGCONT)
            assert [bytes(each) for each in later.result()] == [b"m0", b"later"]
            assert own.call("m1", [b"now"], 10)
            assert not heard.all


def test_what_the_queue_has_no_room_for_is_sent_later_and_in_order() -> None:
    names = ["m0", "m1"]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met, high_water_mark=10, liveness_bound=5.0)
        with opened(own) as heard:
            assert one.opened() == "open"
            own.call("m1", [b"here"], 5)
            os.kill(one.pid, signal.SIGSTOP)
            sent = [own.request("m1", [bytes(30_000), b"%d" % n], 30) for n in range(300)]
            os.kill(one.pid, signal.SIGCONT)
            replies = [int(bytes(memoryview(each.result(20)[2]))) for each in sent]
            assert replies == [*range(300)]
            assert not heard.all


@pytest.mark.parametrize("place", PLACES)
def test_queue_of_one_message_is_enough_to_open_and_to_call(place: str) -> None:
    names = ["m0", "m1"]
    with meeting(names, place) as met:
        one = Peer("m1", names, met, high_water_mark=1)
        own = transport("m0", names, met, high_water_mark=1, liveness_bound=5.0)
        with ExitStack() as stack:
            stack.callback(one.end)
            heard = stack.enter_context(opened(own))
            assert one.opened() == "open"
            assert one.call("m0", "back") == ["m1", "back"]
            sent = [own.request("m1", [b"%d" % n, bytes(2**17)], 20) for n in range(20)]
            assert [int(bytes(memoryview(each.result()[1]))) for each in sent] == [*range(20)]
            assert own.call("m1", [b"here"], 5)
            assert not heard.all


@pytest.mark.parametrize("place", PLACES)
def test_a_member_that_holds_the_gil_is_kept(place: str) -> None:
    names = ["m0", "m1"]
    with meeting(names, place) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own) as heard:
            assert one.opened() == "open"
            own.call("m1", [f"gil {3 * BOUND}".encode()], 10)
            time.sleep(0.2)
            began = time.monotonic()
            assert own.call("m1", [b"after"], 20)
            assert time.monotonic() - began > BOUND, "the GIL was not held"
            assert not heard.all


def test_a_member_that_is_started_again_is_refused() -> None:
    names = ["m0", "m1"]
    with meeting(names, PLACES[1]) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own) as heard:
            assert one.opened() == "open"
            os.kill(one.pid, signal.SIGKILL)
            heard.expect("m1")
            again = Peer("m1", names, met)
            try:
                refusal = again.opened()
                assert "AuthenticationError" in refusal
                assert "cannot come back" in refusal
            finally:
                again.end()
            assert own.members() == ["m0"]


def test_who_is_missing_is_named() -> None:
    names = ["m0", "m1", "m2"]
    with meeting(names) as met, peers(["m1"], names, met) as (one,):
        own = transport("m0", names, met, rendezvous_timeout=3.0)
        one.begins()
        with pytest.raises(CallTimeoutError, match=r"the arrival of m2 .* 3 s"), opened(own):
            pass
        assert "m0" in one.opened()


def test_the_first_member_is_missing() -> None:
    names = ["m0", "m1"]
    with meeting(names, PLACES[1]) as met:
        own = transport("m1", names, met, rendezvous_timeout=0.5)
        with pytest.raises(CallTimeoutError, match=rf"'m0' at {met.address}"), opened(own):
            pass


def test_members_that_torchrun_starts_meet_in_its_store() -> None:
    pytest.importorskip("torch")
    names = ["m0", "m1"]
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    met = Meeting(f"torchrun://127.0.0.1:{port}/job/0", fresh(names))
    with peers(names, names, met) as (first, other):
        assert (first.opened(), other.opened()) == ("open", "open")
        assert first.call("m1", "there") == ["m0", "there"]
        assert other.call("m0", "back") == ["m1", "back"]


def test_closing_with_calls_under_way() -> None:
    names = ["m0", "m1"]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own):
            assert one.opened() == "open"
            waiting = [own.request("m1", [b"never"]) for _ in range(50)]
            own.call("m1", [b"here"], 5)
            done = waiting[0]
            threading.Timer(0.1, own.close).start()
            with pytest.raises(ClosedError):
                own.call("m1", [b"never"])
            assert isinstance(done.exception(5), ClosedError)
        until(lambda: [each[1] for each in one.lost()] == ["has left"], "it was not told")


def test_a_child_that_is_forked_uses_nothing() -> None:
    names = ["m0", "m1"]
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own):
            assert one.opened() == "open"
            own.call("m1", [b"before"], 5)
            pid = os.fork()
            if pid == 0:
                try:
                    own.call("m1", [b"in the child"], 1)
                except ClosedError:
                    own.close()
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert own.call("m1", [b"after"], 5)
