"""Bounded staleness: the clock alone."""

from __future__ import annotations

import pytest
from made_up_clock import entered, started, stepped

from pparallel.errors import ClosedError, PeerLostError
from pparallel_reducers.grad_server.clock import too_old


def test_a_step_waits_for_what_it_would_make_too_old() -> None:
    clock, told = started(bound=1)
    slow, quick = entered(clock, "slow"), entered(clock, "quick")
    clock.arrived([quick.serial])
    assert stepped(clock, 1, quick), "one step behind is allowed"
    quick = entered(clock, "quick")
    clock.arrived([quick.serial])
    assert not stepped(clock, 2, quick)
    clock.arrived([slow.serial])
    assert not stepped(clock, 2, quick), "it has arrived, but is not in the batch yet"
    assert stepped(clock, 2, quick, slow)
    assert told.looks == 0, "whatever it waited for has arrived"


def test_none_behind_at_all() -> None:
    clock, _ = started(bound=0, version=5)
    tickets = [entered(clock, each) for each in "abc"]
    for count in (1, 2):
        clock.arrived([tickets[count - 1].serial])
        assert not stepped(clock, 6, *tickets[:count])
    clock.arrived([tickets[2].serial])
    assert stepped(clock, 6, *tickets)
    assert [entered(clock, each).version for each in "abc"] == [6, 6, 6]


def test_who_enters_during_a_step_that_would_outdate_it_gets_the_next_version() -> None:
    clock, _ = started(bound=0)
    first = entered(clock, "a")
    clock.arrived([first.serial])
    assert clock.may_step([first.serial], True)
    waiting = clock.enter("b", "ps", None)
    assert not waiting.done()
    assert clock.claim("c", "ps", 0, None) is None
    clock.published(1)
    assert waiting.result(timeout=0).version == 1
    assert clock.claim("c", "ps", 0, None) is None
    assert not clock.may_step([], True), "it is waited for from now on"


def test_without_any_staleness_each_member_gives_one_gradient_to_a_step() -> None:
    """Else there might always be somebody who computes, and no step."""
    clock, told = started(bound=0)
    a, b = entered(clock, "a"), entered(clock, "b")
    waiting = clock.enter("a", "ps", None)
    assert not waiting.done()
    assert told.looks == 1
    clock.arrived([a.serial])
    assert not clock.may_step([a.serial], False)
    assert clock.claim("a", "ps", 0, None) is None
    late = entered(clock, "late")
    clock.arrived([b.serial])
    assert not clock.may_step([a.serial, b.serial], False)
    clock.give_back(late.serial)
    assert told.looks > 1
    assert clock.may_step([a.serial, b.serial], False), "somebody waits: there will be no more"
    assert not waiting.done()
    clock.published(1)
    assert waiting.result(timeout=0).version == 1


def test_who_waits_for_a_gradient_that_is_lost_waits_no_more() -> None:
    clock, _ = started(bound=0)
    entered(clock, "a", via="s")
    waiting = clock.enter("a", "t", None)
    assert not waiting.done()
    clock.lost("s")
    assert waiting.result(timeout=0).version == 0


def test_with_some_staleness_a_batch_is_to_be_full() -> None:
    clock, _ = started(bound=1)
    ticket = entered(clock, "a")
    assert entered(clock, "a").version == 0
    clock.arrived([ticket.serial])
    assert not clock.may_step([ticket.serial], False)
    assert clock.may_step([ticket.serial], True)


def test_after_a_step_that_was_made_without_asking_none_is_wanted() -> None:
    clock, _ = started(bound=0)
    entered(clock, "a")
    assert not clock.may_step([], True)
    assert clock.claim("b", "ps", 0, None) is None
    clock.published(1)
    assert clock.claim("b", "ps", 1, None) is not None


def test_who_enters_during_a_step_that_leaves_time_does_not_wait() -> None:
    clock, _ = started(bound=1)
    assert clock.may_step([], True)
    assert entered(clock, "a").version == 0


def test_a_gradient_that_is_too_old_already_gets_no_ticket() -> None:
    clock, _ = started(bound=2)
    for version in (1, 2, 3):
        assert stepped(clock, version)
    assert clock.claim("a", "ps", 0, None) is None
    assert "pull before the next gradient" in too_old(0, 2)
    ticket = clock.claim("a", "ps", 1, None)
    assert ticket is not None
    assert not stepped(clock, 4)


@pytest.mark.parametrize("way", ["pulls again", "gives back", "claims", "ends", "its secondary"])
def test_what_ends_a_ticket_wakes_the_step(way: str) -> None:
    clock, told = started(bound=0)
    ticket = entered(clock, "a", via="s")
    assert not stepped(clock, 1)
    if way == "pulls again":
        assert entered(clock, "a", back=ticket).version == 0
    elif way == "gives back":
        clock.give_back(ticket.serial)
    elif way == "claims":
        assert clock.claim("a", "t", 0, ticket.serial) is None
    elif way == "ends":
        assert clock.lost("a") == ["s"]
        assert told.looks == 0, "its gradient may still come"
        clock.drained("a", "s")
    else:
        assert clock.lost("s") == []
    assert told.looks == 1
    assert stepped(clock, 1) == (way != "pulls again")


def test_what_has_arrived_outlives_its_member_and_its_secondary() -> None:
    clock, _ = started(bound=0)
    a, b = entered(clock, "a", via="s"), entered(clock, "b", via="s")
    clock.arrived([a.serial])
    assert clock.lost("s") == []
    assert clock.lost("a") == []
    assert not stepped(clock, 1), "the gradient is here, and not in the batch"
    assert stepped(clock, 1, a)
    with pytest.raises(ValueError, match=rf"tickets \[{b.serial}\]"):
        clock.arrived([b.serial])


def test_what_has_arrived_cannot_be_given_back() -> None:
    clock, _ = started(bound=0)
    ticket = entered(clock, "a")
    clock.arrived([ticket.serial])
    clock.give_back(ticket.serial)
    assert not stepped(clock, 1), "the gradient is here, and not in the batch"


def test_of_a_member_that_ended_all_secondaries_are_to_be_drained() -> None:
    clock, _ = started(bound=1)
    tickets = [entered(clock, "a", via=each) for each in ("s", "t")]
    assert stepped(clock, 1)
    assert clock.lost("a") == ["s", "t"]
    clock.drained("a", "s")
    assert not stepped(clock, 2)
    clock.arrived([tickets[1].serial])
    clock.drained("a", "t")
    assert not stepped(clock, 2)
    assert stepped(clock, 2, tickets[1])


def test_tickets_that_are_not_on_their_way_are_refused() -> None:
    clock, _ = started(bound=3)
    a, b = entered(clock, "a"), entered(clock, "b")
    for serials in ([a.serial, a.serial], [a.serial, 99], [0]):
        with pytest.raises(ValueError, match="not all are on their way"):
            clock.arrived(serials)
    clock.arrived([a.serial, b.serial])
    with pytest.raises(ValueError, match="not all are on their way"):
        clock.arrived([b.serial])


def test_who_was_lost_gets_no_ticket() -> None:
    clock, _ = started(bound=0)
    a = entered(clock, "a")
    assert clock.may_step([], True) is False
    clock.arrived([a.serial])
    assert clock.may_step([a.serial], True)
    waiting = clock.enter("b", "ps", None)
    clock.lost("b")
    with pytest.raises(PeerLostError):
        waiting.result(timeout=0)
    clock.published(1)
    for ask in (lambda: clock.enter("b", "ps", None), lambda: clock.claim("b", "ps", 1, None)):
        with pytest.raises(PeerLostError):
            ask()
    assert stepped(clock, 2)


def test_nothing_waits_for_what_goes_to_a_lost_secondary() -> None:
    clock, _ = started(bound=0)
    clock.lost("s")
    assert entered(clock, "a", via="s").version == 0
    assert stepped(clock, 1)


def test_the_end_refuses_all() -> None:
    clock, _ = started(bound=0)
    assert clock.may_step([], True)
    waiting = clock.enter("b", "ps", None)
    clock.end(ClosedError("the reducer"))
    clock.end(ValueError("too late"))
    with pytest.raises(ClosedError):
        waiting.result(timeout=0)
    with pytest.raises(ClosedError):
        clock.enter("b", "ps", None)
    with pytest.raises(ClosedError):
        clock.claim("b", "ps", 0, None)
