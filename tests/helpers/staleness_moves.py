"""Bounded staleness: clock, secondaries and members, made up, together."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st

from pparallel_reducers.grad_server.clock import Clock
from pparallel_reducers.grad_server.pace import Pace
from pparallel_reducers.grad_server.tickets import Ticket


@dataclass
class Gradient:
    member: str
    serial: int
    version: int


@dataclass
class Secondary:
    """Takes gradients, and puts them on the wire to the primary."""

    name: str
    inbox: deque[Gradient] = field(default_factory=deque)
    wire: deque[Gradient] = field(default_factory=deque)
    fenced: set[str] = field(default_factory=set)

    def work(self) -> None:
        if self.inbox:
            self.wire.append(self.inbox.popleft())


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
        self.air: deque[tuple[str, Gradient]] = deque()
        self.looks = 0
        self.clock = Clock(bound, 0, self._count_look)
        self.secondaries = {each: Secondary(each) for each in secondaries}
        self.workers = {each: Worker(each, self.clock) for each in NAMES[1:]}
        self.dead: set[str] = set()
        self.unnoticed: list[str] = []
        self.draining: list[tuple[str, str]] = []
        self.fenced: set[str] = set()
        self.queue: deque[Gradient] = deque()
        self.batch: list[Gradient] = []
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

    # -- secondaries

    def gradient_arrives(self) -> None:
        if self.air:
            via, gradient = self.air.popleft()
            if via not in self.dead and gradient.member not in self.secondaries[via].fenced:
                self.secondaries[via].inbox.append(gradient)

    def secondary_works(self, name: str) -> None:
        if name in self.secondaries and name not in self.dead:
            self.secondaries[name].work()

    def secondary_drains(self) -> None:
        if not self.draining:
            return
        member, via = self.draining.pop(0)
        if via in self.dead:
            return  # the primary will notice
        secondary = self.secondaries[via]
        while secondary.inbox:
            secondary.work()
        while secondary.wire:
            self.sum_arrives(via)
        self.clock.drained(member, via)

    # -- the primary

    def sum_arrives(self, name: str) -> None:
        if name in self.secondaries and self.secondaries[name].wire:
            message = self.secondaries[name].wire.popleft()
            if name not in self.fenced:
                self.clock.arrived([message.serial])
                self.queue.append(message)

    def primary_works(self) -> None:
        if self.stepping:
            self.stepping = False
            self.version += 1
            self.clock.published(self.version)
            return
        if self.queue:
            self.batch.append(self.queue.popleft())
        elif self.looks:
            self.looks -= 1
        else:
            return
        is_full = len(self.batch) >= self.size
        if self.batch and self.clock.may_step([each.serial for each in self.batch], is_full):
            for each in self.batch:
                assert self.version - each.version <= self.bound
            self.reduced += len(self.batch)
            self.batch, self.stepping = [], True

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


ALONE = ("gradient_arrives", "secondary_drains", "primary_works")
OF_ONE = ("pull", "push", "fail_to_push", "train", "secondary_works", "sum_arrives", "end")
MOVES = (*ALONE, *OF_ONE, "primary_notices", "train", "train", "much_happens", "much_happens")

#: what a test draws: the bound, the size of a batch, the secondaries, and what happens
DRAWN = {
    "bound": st.integers(0, 3),
    "size": st.integers(1, 3),
    "secondaries": st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    "moves": st.lists(
        st.tuples(st.sampled_from(MOVES), st.sampled_from(NAMES[1:])), min_size=60, max_size=120
    ),
}


def play(bound: int, size: int, secondaries: list[str], moves: list[tuple[str, str]]) -> int:
    """Have all *moves* happen, and steps go on; return how many gradients were reduced."""
    together = Together(bound, size, secondaries)
    for what, name in moves:
        move = getattr(together, what)
        move(name) if what in OF_ONE else move()
    reduced = together.reduced
    together.go_on()
    return reduced
