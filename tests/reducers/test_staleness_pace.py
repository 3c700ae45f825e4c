"""Bounded staleness: a member's side of the clock."""

from __future__ import annotations

import threading

import pytest
from made_up_clock import started, stepped

from pparallel_reducers.grad_server.clock import Clock
from pparallel_reducers.grad_server.pace import Pace
from pparallel_reducers.grad_server.tickets import Ticket


def paced(clock: Clock, member: str = "a") -> Pace:
    return Pace(
        lambda via, back: clock.enter(member, via, back).result(timeout=0),
        lambda via, version, back: clock.claim(member, via, version, back),
        clock.give_back,
        lambda known: clock.abandon(member, known),
    )


def test_a_pull_is_for_one_push() -> None:
    clock, _ = started(bound=0)
    pace = paced(clock)
    assert pace.before_pull("ps") == 0
    first = pace.for_push("ps", 0)
    assert first is not None
    assert pace.for_push("ps", 0) == first, "the attempt before failed"
    pace.used()
    assert pace.for_push("ps", 0) is None, "the step takes one of each member"
    clock.arrived([first.serial])
    assert pace.for_push("ps", 0) is None
    assert stepped(clock, 1, first)
    assert pace.for_push("ps", 0) is None, "it is too old"
    assert stepped(clock, 2)


def test_another_secondary_takes_another_ticket() -> None:
    clock, _ = started(bound=0)
    pace = paced(clock)
    pace.before_pull("s")
    first, second = pace.for_push("s", 0), pace.for_push("t", 0)
    assert first is not None
    assert second is not None
    with pytest.raises(ValueError, match="not all are on their way"):
        clock.arrived([first.serial])
    clock.arrived([second.serial])
    assert stepped(clock, 1, second)


def test_another_model_with_older_parameters_takes_an_older_ticket() -> None:
    clock, _ = started(bound=1)
    pace = paced(clock)
    assert stepped(clock, 1)
    assert pace.before_pull("ps") == 1
    ticket = pace.for_push("ps", 0)
    assert ticket is not None
    assert ticket.version == 0
    assert not stepped(clock, 2)


def test_a_pull_of_another_thread_takes_nothing_from_a_push() -> None:
    clock, _ = started(bound=1)
    pace = paced(clock)
    pace.before_pull("ps")
    ticket = pace.for_push("ps", 0)
    assert ticket is not None
    thread = threading.Thread(target=pace.before_pull, args=("ps",))
    thread.start()
    thread.join()
    clock.arrived([ticket.serial])
    pace.used()
    assert stepped(clock, 1)
    assert not stepped(clock, 2, ticket), "the one after is waited for"
    pace.leave()
    assert stepped(clock, 2, ticket)


def test_a_pull_gives_back_what_a_push_that_failed_had() -> None:
    clock, _ = started(bound=0)
    pace = paced(clock)
    pace.before_pull("ps")
    assert pace.for_push("ps", 0) is not None
    pace.before_pull("ps")
    ticket = pace.for_push("ps", 0)
    assert ticket is not None
    clock.arrived([ticket.serial])
    assert stepped(clock, 1, ticket)


def test_pulls_of_several_threads_leave_one_ticket() -> None:
    clock, _ = started(bound=1)

    def pulls_elsewhere() -> None:
        thread = threading.Thread(target=pace.before_pull, args=("ps",))
        thread.start()
        thread.join()

    def enter(via: str, back: int | None) -> Ticket:
        if threading.current_thread() is threading.main_thread():
            pulls_elsewhere()
        return clock.enter("a", via, back).result(timeout=0)

    pace = Pace(enter, lambda via, version, back: None, clock.give_back)
    pace.before_pull("ps")
    pace.for_push("ps", 0)
    pulls_elsewhere()
    pace.before_pull("ps")
    ticket = pace.for_push("ps", 0)
    assert ticket is not None
    clock.arrived([ticket.serial])
    assert stepped(clock, 1)
    assert stepped(clock, 2, ticket)


def test_giving_up_leaves_no_ticket() -> None:
    clock, _ = started(bound=0)
    pace = paced(clock)
    pace.before_pull("ps")
    pace.for_push("ps", 0)
    pace.give_up()
    pace.before_pull("ps")
    pace.give_up()
    pace.give_up()
    assert stepped(clock, 1)


@pytest.mark.parametrize("bound", [0, 1])
def test_two_threads_that_push_have_no_ticket_in_common(bound: int) -> None:
    clock, _ = started(bound)
    pace = paced(clock)
    pace.before_pull("ps")
    mine = pace.for_push("ps", 0)
    others: list[Ticket | None] = []
    thread = threading.Thread(target=lambda: others.append(pace.for_push("ps", 0)))
    thread.start()
    thread.join()
    assert mine is not None
    assert mine not in others
    assert (None in others) == (bound == 0), "in lock-step a step takes one of each member"


@pytest.mark.parametrize("then", ["pull", "push", "leave"])
def test_the_ticket_of_a_gradient_that_was_taken_is_not_given_back(then: str) -> None:
    clock, _ = started(bound=1)
    pace = paced(clock)
    pace.before_pull("ps")
    ticket = pace.for_push("ps", 0)
    assert ticket is not None
    thread = threading.Thread(target=pace.taken, args=(ticket.serial,))
    thread.start()
    thread.join()
    match then:
        case "pull":
            pace.before_pull("ps")
        case "push":
            assert pace.for_push("ps", 0) not in (None, ticket)
        case _:
            pace.leave()
    clock.arrived([ticket.serial])


def test_leaving_gives_back_what_a_push_that_failed_had() -> None:
    clock, _ = started(bound=0)
    pace = paced(clock)
    pace.before_pull("ps")
    pace.for_push("ps", 0)
    pace.before_pull("ps")
    assert not stepped(clock, 1)
    pace.leave()
    pace.leave()
    assert stepped(clock, 1)
