"""Bounded staleness: the clock alone, among made-up members, and in a gradient server."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.reducer import Counters
from pparallel.testing.patience import PATIENCE, until
from pparallel_reducers import GradServerReducerConfig
from pparallel_reducers.grad_server.clock import Clock, too_old
from pparallel_reducers.grad_server.pace import Haste, Pace
from pparallel_reducers.grad_server.tickets import Ticket

if TYPE_CHECKING:
    from pparallel.builder import Runtime


class Told:
    """What a clock asked for."""

    def __init__(self) -> None:
        self.hurried: list[tuple[str, str, int]] = []
        self.looks = 0

    def hurry(self, via: str, member: str, serial: int) -> None:
        self.hurried.append((via, member, serial))

    def look(self) -> None:
        self.looks += 1


def started(bound: int, version: int = 0) -> tuple[Clock, Told]:
    told = Told()
    return Clock(bound, version, told.hurry, told.look), told


def entered(clock: Clock, member: str, via: str = "ps", back: Ticket | None = None) -> Ticket:
    return clock.enter(member, via, back.serial if back else None).result(timeout=0)


def stepped(clock: Clock, version: int, *batch: Ticket) -> bool:
    """Try a step to *version* on gradients that have come."""
    serials = [each.serial for each in batch]
    if not clock.may_step(serials, True):
        return False
    clock.published(version)
    return True


def test_a_step_waits_for_what_it_would_make_too_old() -> None:
    clock, told = started(bound=1)
    slow, quick = entered(clock, "slow"), entered(clock, "quick")
    clock.arrived([quick.serial])
    assert stepped(clock, 1, quick), "one step behind is allowed"
    quick = entered(clock, "quick")
    clock.arrived([quick.serial])
    assert not stepped(clock, 2, quick)
    assert told.hurried == [("ps", "slow", slow.serial)]
    clock.arrived([slow.serial])
    assert not stepped(clock, 2, quick), "it has arrived, but is not in the batch yet"
    assert stepped(clock, 2, quick, slow)
    assert told.looks == 0, "whatever it waited for has arrived"
    assert len(told.hurried) == 1, "once for each ticket"


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


# -- a member's side ------------------------------------------------------------------------------


def paced(clock: Clock, member: str = "a") -> Pace:
    return Pace(
        lambda via, back: clock.enter(member, via, back).result(timeout=0),
        lambda via, version, back: clock.claim(member, via, version, back),
        clock.give_back,
    )


def test_a_pull_is_for_one_push() -> None:
    clock, _ = started(bound=0)
    pace = paced(clock)
    assert pace.before_pull("ps") == 0
    first = pace.for_push("ps", 0)
    assert first is not None
    assert pace.for_push("ps", 0) == first, "the attempt before failed"
    pace.used()
    second = pace.for_push("ps", 0)
    assert second is not None
    assert second.serial != first.serial
    pace.used()
    clock.arrived([first.serial])
    assert not stepped(clock, 1, first), "the second is on its way"
    clock.arrived([second.serial])
    assert stepped(clock, 1, first, second)
    assert pace.for_push("ps", 0) is None
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


def test_two_threads_that_push_have_a_ticket_each() -> None:
    clock, _ = started(bound=0)
    pace = paced(clock)
    pace.before_pull("ps")
    mine = pace.for_push("ps", 0)
    others: list[Ticket | None] = []
    thread = threading.Thread(target=lambda: others.append(pace.for_push("ps", 0)))
    thread.start()
    thread.join()
    assert mine is not None
    assert mine not in others
    assert None not in others


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


def test_a_secondary_hurries_with_what_was_asked_for_and_no_more() -> None:
    haste = Haste(1)
    assert not haste.due([("a", 0)], [1])
    haste.ask("a", 3)
    haste.ask("a", 2)
    assert haste.due([("b", 0), ("a", 0)], [1, 3])
    assert haste.due([("a", 0)], [1]), "what came before it would be too old too"
    assert not haste.due([("b", 0), ("a", 1)], [2, 4])


# -- all together ---------------------------------------------------------------------------------


@dataclass
class Gradient:
    member: str
    serial: int
    version: int


@dataclass
class Secondary:
    """Takes gradients, and puts sums of them on the wire to the primary."""

    name: str
    size: int
    haste: Haste
    inbox: deque[Gradient] = field(default_factory=deque)
    batch: list[Gradient] = field(default_factory=list)
    wire: deque[list[Gradient]] = field(default_factory=deque)
    fenced: set[str] = field(default_factory=set)

    def work(self) -> None:
        if self.inbox:
            self.batch.append(self.inbox.popleft())
        if len(self.batch) >= self.size or self.due():
            self.hand_on()

    def due(self) -> bool:
        ids = [(each.member, 0) for each in self.batch]
        return self.haste.due(ids, [each.serial for each in self.batch])

    def hand_on(self) -> None:
        if self.batch:
            self.wire.append(self.batch)
            self.batch = []


class Worker:
    """Pulls and pushes; it waits where a member would."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.version = 0
        self.pulling: Future[Ticket] | None = None
        self.via = ""  # when it began to pull
        self._next: Ticket | None = None
        self.pace = Pace(
            lambda via, back: self._got(),
            lambda via, version, back: clock.claim(name, via, version, back),
            clock.give_back,
        )

    def _got(self) -> Ticket:
        assert self.pulling is not None
        return self.pulling.result(timeout=0)


NAMES = ("ps", "a", "b", "c")


class Together:
    """Members push through secondaries to a primary; any of them but the primary may end.

    Whatever is on its way takes its time: gradients, sums, what the clock asks for, and the news
    that a member ended.
    """

    def __init__(self, bound: int, size: int, secondaries: list[str]) -> None:
        self.bound, self.size, self.version, self.reduced = bound, size, 0, 0
        self.asked: deque[tuple[str, str, int]] = deque()
        self.air: deque[tuple[str, Gradient]] = deque()
        self.looks = 0
        self.clock = Clock(bound, 0, lambda *asked: self.asked.append(asked), self._count_look)
        self.secondaries = {each: Secondary(each, size, Haste(bound)) for each in secondaries}
        self.workers = {each: Worker(each, self.clock) for each in NAMES[1:]}
        self.dead: set[str] = set()
        self.unnoticed: list[str] = []
        self.draining: list[tuple[str, str]] = []
        self.fenced: set[str] = set()
        self.queue: deque[list[Gradient]] = deque()
        self.batch: list[Gradient] = []
        self.messages = 0
        self.stepping = False

    def _count_look(self) -> None:
        self.looks += 1

    def _via(self, member: str) -> str | None:
        live = [each for each in self.secondaries if each not in self.dead]
        return live[NAMES.index(member) % len(live)] if live else None

    # -- members

    def pull(self, member: str) -> None:
        via = self._via(member)
        if member not in self.workers or via is None:
            return
        worker = self.workers[member]
        if worker.pulling is None:
            worker.pace.give_up()
            worker.pulling, worker.via = self.clock.enter(member, via, None), via
        if worker.pulling.done():
            assert worker.pace.before_pull(worker.via) <= self.version
            worker.version, worker.pulling = self.version, None

    def fail_to_push(self, member: str) -> None:
        self.push(member, fails=True)

    def train(self, member: str) -> None:
        self.pull(member)
        self.push(member)

    def push(self, member: str, fails: bool = False) -> None:
        via = self._via(member)
        if member not in self.workers or via is None:
            return
        worker = self.workers[member]
        if worker.pulling is not None:
            return
        ticket = worker.pace.for_push(via, worker.version)
        if ticket is None:
            assert self.version + 1 - worker.version > self.bound
        elif not fails:
            gradient = Gradient(member, ticket.serial, worker.version)
            self.air.append((via, gradient))
            worker.pace.used()

    def end(self, member: str) -> None:
        """Have one die, then one stop; the third goes on."""
        if len(self.workers) == 3:
            self.die(member)
        elif len(self.workers) == 2:
            self.stop(member)

    def stop(self, member: str) -> None:
        worker = self.workers.get(member)
        if worker is not None and worker.pulling is None:
            self.workers.pop(member).pace.leave()

    def die(self, member: str) -> None:
        if member in self.dead:
            return
        self.dead.add(member)
        self.unnoticed.append(member)
        self.workers.pop(member, None)
        if (secondary := self.secondaries.get(member)) is not None:
            secondary.inbox.clear()
            secondary.batch.clear()

    # -- secondaries

    def gradient_arrives(self) -> None:
        if self.air:
            via, gradient = self.air.popleft()
            if via not in self.dead and gradient.member not in self.secondaries[via].fenced:
                self.secondaries[via].inbox.append(gradient)

    def secondary_works(self, name: str) -> None:
        if name in self.secondaries and name not in self.dead:
            self.secondaries[name].work()

    def secondary_is_asked_to_hurry(self) -> None:
        if self.asked:
            via, member, serial = self.asked.popleft()
            if via not in self.dead:
                secondary = self.secondaries[via]
                secondary.haste.ask(member, serial)
                if secondary.due():
                    secondary.hand_on()

    def secondary_drains(self) -> None:
        if not self.draining:
            return
        member, via = self.draining.pop(0)
        if via in self.dead:
            return  # the primary will notice
        secondary = self.secondaries[via]
        while secondary.inbox:
            secondary.work()
        secondary.hand_on()
        while secondary.wire:
            self.sum_arrives(via)
        self.clock.drained(member, via)

    # -- the primary

    def sum_arrives(self, name: str) -> None:
        if name in self.secondaries and self.secondaries[name].wire:
            message = self.secondaries[name].wire.popleft()
            if name not in self.fenced:
                self.clock.arrived([each.serial for each in message])
                self.queue.append(message)

    def primary_works(self) -> None:
        if self.stepping:
            self.stepping = False
            self.version += 1
            self.clock.published(self.version)
            return
        if self.queue:
            self.batch += self.queue.popleft()
            self.messages += 1
        elif self.looks:
            self.looks -= 1
        else:
            return
        is_full = self.messages >= self.size
        if self.batch and self.clock.may_step([each.serial for each in self.batch], is_full):
            for each in self.batch:
                assert self.version - each.version <= self.bound
            self.reduced += len(self.batch)
            self.batch, self.messages, self.stepping = [], 0, True

    def primary_notices(self) -> None:
        if self.unnoticed:
            member = self.unnoticed.pop(0)
            self.fenced.add(member)
            for via in self.clock.lost(member):
                self.secondaries[via].fenced.add(member)
                self.draining.append((member, via))

    def much_happens(self, rounds: int = 3) -> None:
        """Have everything that is under way make some way."""
        for _ in range(rounds):
            self.primary_notices()
            self.gradient_arrives()
            self.secondary_is_asked_to_hurry()
            self.secondary_drains()
            for name in self.secondaries:
                self.secondary_works(name)
                self.sum_arrives(name)
            self.primary_works()

    def go_on(self) -> None:
        """If those that are left go on pulling and pushing, steps go on."""
        if not self.workers or self._via("a") is None:
            return
        goal = self.version + 3
        for _ in range(40):
            for member in list(self.workers):
                self.push(member)
                self.pull(member)
                self.much_happens(1)
            self.much_happens(3)
            if self.version >= goal:
                return
        pytest.fail(f"version {self.version}: steps do not go on")


ALONE = ("gradient_arrives", "secondary_is_asked_to_hurry", "secondary_drains", "primary_works")
OF_ONE = ("pull", "push", "fail_to_push", "train", "secondary_works", "sum_arrives", "end")
MOVES = (*ALONE, *OF_ONE, "primary_notices", "train", "train", "much_happens", "much_happens")


def test_no_gradient_is_too_old_and_steps_go_on(scale: Any) -> None:
    reduced = 0

    @settings(max_examples=scale(1000), suppress_health_check=list(HealthCheck))
    @given(
        bound=st.integers(0, 3),
        size=st.integers(1, 3),
        secondaries=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
        moves=st.lists(
            st.tuples(st.sampled_from(MOVES), st.sampled_from(NAMES[1:])), min_size=60, max_size=120
        ),
    )
    def run(bound: int, size: int, secondaries: list[str], moves: list[tuple[str, str]]) -> None:
        nonlocal reduced
        together = Together(bound, size, secondaries)
        for what, name in moves:
            move = getattr(together, what)
            move(name) if what in OF_ONE else move()
        reduced += together.reduced
        together.go_on()

    run()
    assert reduced > scale(1000), "too little happens for this to test anything"


# -- a grad_server --------------------------------------------------------------------------------

ROUNDS, PUSHES = 3, 60  #: of the slow member, and of each quick one
STEPS = 400  #: more than there can be


class Marks(torch.optim.Optimizer):
    """Its steps count themselves in the first entry, and see what each gradient was computed on.

    Attributes:
        behind: by how many steps the gradients of each step were behind at most.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.behind: list[int] = []
        self.gradients = 0

    @override
    def step(self, closure: Any = None) -> Any:
        (parameter,) = self.param_groups[0]["params"]
        marks = parameter.grad[0, 1:]
        oldest = int(marks.nonzero()[0])
        self.behind.append(len(self.behind) - oldest)
        self.gradients += int(marks.sum())
        parameter.data[0, 0] += 1


def marked() -> nn.Module:
    model = nn.Linear(STEPS + 1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def mark(model: nn.Module) -> int:
    """Give *model* a gradient that says which version it is computed on; return that."""
    (parameter,) = model.parameters()
    version = int(parameter[0, 0])
    parameter.grad = torch.zeros_like(parameter)
    parameter.grad[0, 1 + version] = 1
    return version


class Race:
    """What the members of a test share, which are threads."""

    def __init__(self) -> None:
        self.pushed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.slow_has_pulled = threading.Event()

    def quick_have_pushed(self, count: int) -> bool:
        return all(self.pushed[each] >= min(count, PUSHES) for each in ("a", "b"))


def run_race(rt: Runtime, race: Race, bound: int | None) -> tuple[list[int], Counters, int]:
    """Two members push again and again, while a third stays with one gradient for long."""
    reducer, model = rt.reducer, marked()
    optimizer = Marks(model.parameters())
    if reducer.manages:
        reducer.manage_model(model, optimizer)
    reducer.start()
    reducer.pull(model)
    if rt.name == "slow":
        for _ in range(ROUNDS):
            mark(model)
            race.slow_has_pulled.set()
            # Without any staleness they wait for this member.
            goal = race.pushed["a"] + 10 if bound != 0 else 0
            until(partial(race.quick_have_pushed, goal), "the others do not go on")
            assert reducer.push(model)
            reducer.pull(model)
    elif reducer.trains:
        race.slow_has_pulled.wait(PATIENCE)
        for each in range(PUSHES):
            mark(model)
            accepted = reducer.push(model)
            race.pushed[rt.name] += 1
            race.refused[rt.name] += not accepted
            if each % 3:
                reducer.pull(model)
    reducer.stop()
    return optimizer.behind, reducer.counters(), optimizer.gradients


def raced(bound: int | None, **options: Any) -> tuple[list[int], int, Race]:
    race = Race()
    reducer = GradServerReducerConfig(reduce_method="sum", max_staleness=bound, **options)
    config = pparallel.RuntimeConfig(members=["ps", "a", "b", "slow"], reducer=reducer)
    results = pparallel.launch(config, run_race, (race, bound))
    behind, counters, gradients = results[0]
    assert gradients == counters.reduced == sum(each.pushed for _, each, _ in results)
    assert counters.refused == race.refused.total()
    return behind, gradients, race


SERVERS: dict[str, dict[str, Any]] = {
    "primary alone": {},
    "batches": {"reduce_batch_size": 2, "max_queue_size": 3},
    "one secondary each": {"secondaries": ("a", "b", "slow"), "reduce_batch_size": 3},
    "all together": {"secondaries": ("ps", "b"), "reduce_batch_size": 2, "dedicated": False},
}


@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("bound", [0, 2])
def test_no_step_is_on_a_gradient_that_is_older_than_allowed(
    bound: int, options: dict[str, Any]
) -> None:
    behind, _, _ = raced(bound, **options)
    assert behind
    assert max(behind) <= bound


def test_without_a_bound_they_are_older() -> None:
    behind, _, race = raced(None)
    assert max(behind) > 2
    assert not race.refused.total()


def outlive(rt: Runtime, pushes: bool) -> int | None:
    """One member leaves with a ticket, and maybe with a gradient at its secondary."""
    reducer, model = rt.reducer, marked()
    if reducer.manages:
        reducer.manage_model(model, Marks(model.parameters()))
    reducer.start()
    reducer.pull(model)
    if rt.name == "leaver" and pushes:
        mark(model)
        assert reducer.push(model)
        reducer.pull(model)
    rt.group().barrier()
    if rt.name == "leaver":
        return None

    def goes_on() -> bool:
        mark(model)
        reducer.push(model)
        return reducer.pull(model) and mark(model) > 3

    if reducer.trains:
        until(goes_on, "steps wait for a member that is gone")
        model.zero_grad()
    reducer.stop()
    return reducer.counters().reduced


@pytest.mark.parametrize("secondaries", [["ps"], ["leaver", "a"], ["a"]], ids=" ".join)
@pytest.mark.parametrize("pushes", [False, True])
def test_steps_do_not_wait_for_a_member_that_left(secondaries: list[str], pushes: bool) -> None:
    members = ["ps", "a", "b", {"name": "leaver", "override": {"close_timeout": 0.05}}]
    reducer = GradServerReducerConfig(
        max_staleness=int(pushes),  # a pull after a push would wait for all
        secondaries=tuple(secondaries),
        reduce_batch_size=2,
    )
    config = pparallel.RuntimeConfig.model_validate({"members": members, "reducer": reducer})
    reduced = pparallel.launch(config, outlive, (pushes,))[0]
    assert reduced is not None
    assert reduced > 3


def train_on_shares(rt: Runtime) -> Counters:
    reducer, model = rt.reducer, nn.Linear(50, 1)
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.01))
    reducer.start()
    reducer.pull(model)
    for _ in range(20):
        model(torch.ones(1, 50)).square().sum().backward()
        reducer.step(model)
    reducer.stop()
    return reducer.counters()


@pytest.mark.parametrize("bound", [0, 1])
def test_each_of_several_primaries_has_a_clock(bound: int) -> None:
    reducer = GradServerReducerConfig(
        primaries=("a", "b"),
        secondaries=("b", "c"),
        dedicated=False,
        reduce_batch_size=2,
        max_staleness=bound,
    )
    config = pparallel.RuntimeConfig(members=["a", "b", "c"], reducer=reducer)
    counters = pparallel.launch(config, train_on_shares)
    assert all(each.staleness <= bound for each in counters)
    pushed = sum(each.pushed for each in counters)
    refused = sum(each.refused for each in counters)
    assert [each.reduced for each in counters] == [pushed, pushed, 0]
    assert pushed + refused == 60
