"""Members that die, stop, or come back: what the others see, on transports between processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from crew import BOUND, Crew, crew

from pparallel.testing.patience import until

LATE = 4.0  #: seconds that a test allows beyond the bound, for a machine that is busy

#: what a transport says that asks for signs of life, if it sees that sooner than the signal
UNREACHABLE = "cannot be reached any more: its connection broke and did not come back"

TRANSPORTS: dict[str, dict[str, Any]] = {
    "ipc": {"backend": "ipc"},
    "zmq": {"backend": "zmq"},
}


@pytest.fixture(params=TRANSPORTS)
def members(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crew]:
    with crew(tmp_path, TRANSPORTS[request.param]) as started:
        yield started


def serve(members: Crew, name: str, *gone: str) -> None:
    """Start a member that answers until the end, and until *gone* are lost."""
    members.start(name, "serve", members.note("over"), *gone)


def killed(members: Crew, name: str) -> None:
    members.note("killed").touch()
    members.kill(name)


def test_a_member_killed_in_the_middle_of_a_call(members: Crew) -> None:
    serve(members, "a", "c")
    members.start("b", "call_to_the_end", "c", members.note("waits"))
    serve(members, "c")
    members.noted("waits")
    killed(members, "c")
    error, late, here = members.answer("b")
    assert error.startswith("PeerLostError: member 'c' has died")
    assert late < BOUND + LATE
    assert here == ["a", "b"]
    members.note("over").touch()
    assert members.answer("a") == ["a", "b"]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_coroutine_ends_with_its_caller(members: Crew, at_once: bool) -> None:
    serve(members, "a", "b")
    members.start("b", "call_a_coroutine", "a", members.note("waits"), at_once)
    serve(members, "c")
    members.noted("waits")
    killed(members, "b")
    members.noted("waits ended")
    members.note("over").touch()
    assert members.answer("a") == ["a", "c"]


def test_a_member_killed_with_many_calls_under_way(members: Crew) -> None:
    serve(members, "a")
    members.start("b", "call_without_a_pause", "c", members.note("calls"))
    serve(members, "c")
    members.noted("calls")
    killed(members, "c")
    results, errors, wrong = members.answer("b")
    assert results > 0
    assert errors
    assert all(each.startswith("member 'c' has died") for each in errors), errors
    assert not wrong
    members.note("over").touch()


def test_whoever_waits_for_it_wakes(members: Crew) -> None:
    members.start("a", "call_many_ways", "c", members.note("waits"))
    members.start("b", "call_many_ways", "c", members.note("waits"))
    serve(members, "c")
    members.noted("waits")
    killed(members, "c")
    for name in "ab":
        found = members.answer(name)
        assert len(found) == 4
        assert all(each.startswith("PeerLostError: member 'c' has died") for each in found), found


def test_the_end_of_the_first_member_ends_the_job_by_name(members: Crew) -> None:
    serve(members, "a")
    members.start("b", "wait_for_the_end")
    members.start("c", "call_to_the_end", "b", members.note("waits"))
    members.noted("waits")
    killed(members, "a")
    why = "PeerLostError: member 'a' has died"
    error = members.outcome("b").error
    assert error.startswith(why)
    assert error.endswith("and the job ends with its first member")
    # The same news may come to b first, and that it has left for it to c before the news itself.
    assert members.answer("c")[0].startswith((why, "PeerLostError: member 'b' has left"))


def test_one_that_was_stopped_finds_that_it_was_given_up(members: Crew) -> None:
    serve(members, "a", "c")
    members.start("b", "call_to_the_end", "c", members.note("waits"))
    members.start("c", "wait_for_the_end")
    members.noted("waits")
    members.note("killed").touch()
    members.signal("c", signal.SIGSTOP)
    error, late, here = members.answer("b")
    reasons = (f"was stopped by a signal for {BOUND:g} s", UNREACHABLE)
    reason = error.removeprefix("PeerLostError: member 'c' ").partition(" (process")[0]
    assert reason.removesuffix(" from member 'b'") in reasons  # b's own connection may end first
    assert BOUND * 0.8 < late < BOUND + LATE
    assert here == ["a", "b"]
    members.signal("c", signal.SIGCONT)
    told = members.outcome("c").error
    assert any(f"member 'a' gave this member up: it {each}" in told for each in reasons)
    members.note("over").touch()
    assert members.answer("a") == ["a", "b"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_that_was_stopped_for_less_is_not_given_up(tmp_path: Path, transport: str) -> None:
    with crew(tmp_path, {**TRANSPORTS[transport], "liveness_bound": 5 * BOUND}) as members:
        for name in "ab":
            members.start(name, "calls_before_and_after", "c", members.note("go on"))
        serve(members, "c")
        for name in "ab":
            members.noted(f"{name} has called")
        members.signal("c", signal.SIGSTOP)
        members.note("go on").touch()
        time.sleep(BOUND)
        members.signal("c", signal.SIGCONT)
        for name in "ab":
            answer, here = members.answer(name)
            assert answer == 3
            assert "c" in here
        members.note("over").touch()
        assert not members.outcome("c").error


def test_a_member_that_holds_the_gil_is_not_lost(members: Crew) -> None:
    serve(members, "a")
    members.start("b", "have_it_hold_the_gil", "c", 2 * BOUND)
    serve(members, "c")
    took, here = members.answer("b")
    assert took > 2 * BOUND
    assert here == ["a", "b", "c"]
    members.note("over").touch()
    assert "c" in members.answer("a")
    assert not members.outcome("c").error


def test_a_member_cannot_come_back_under_its_name(members: Crew) -> None:
    serve(members, "a")
    members.start("b", "calls_after", "a", members.note("go on"))
    members.start("c", "call_to_the_end", "b", members.note("waits"))
    members.noted("waits")
    members.kill("c")
    serve(members, "c")
    error = members.outcome("c").error
    # It may come before its death is known: then that is what it is given up for.
    gone = "member 'c' has died" in error and "cannot come back" in error
    assert gone or "gave this member up: it has died" in error, error
    members.note("waits over").touch()
    members.note("go on").touch()
    answer, here = members.answer("b")
    assert answer == 3
    assert here == ["a", "b"]
    members.note("over").touch()
    assert not members.outcome("a").error


def test_two_members_cannot_have_one_name(members: Crew) -> None:
    serve(members, "a", "c")
    serve(members, "b")
    members.start("c", "call_to_the_end", "b", members.note("waits"))
    members.noted("waits")
    first = members.processes["c"]
    serve(members, "c")
    assert "already" in members.outcome("c").error
    first.signal(signal.SIGKILL)
    until(lambda: first.ended() is not None, "the first has ended")
    members.note("waits over").touch()
    members.note("over").touch()
    assert "c" not in members.answer("a")


def test_whoever_is_missing_is_named(tmp_path: Path) -> None:
    with ExitStack() as crews:
        found = []
        for name, transport in TRANSPORTS.items():
            (tmp_path / name).mkdir()
            late = {**transport, "rendezvous_timeout": 3.0}
            found.append(crews.enter_context(crew(tmp_path / name, late)))
        for members in found:
            serve(members, "a")
            serve(members, "c")
        for members in found:
            for name in "ac":
                error = members.outcome(name).error
                assert "CallTimeoutError: the arrival of b was not answered within 3 s" in error
