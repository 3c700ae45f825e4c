"""One member's part in keeping gradients from becoming too old: see ``clock``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from pparallel.errors import ClosedError, PparallelError
from pparallel.runtime.future import fail, settle
from pparallel.runtime.rpc import Reply, Request, RpcGroup, Service
from pparallel_reducers.grad_server.clock import Clock, too_old
from pparallel_reducers.grad_server.level import Level
from pparallel_reducers.grad_server.pace import Pace
from pparallel_reducers.grad_server.primary import Primary
from pparallel_reducers.grad_server.run import Run
from pparallel_reducers.grad_server.sums import Sum
from pparallel_reducers.grad_server.tickets import Ticket
from pparallel_reducers.grad_server.who import Who
from pparallel_reducers.tally import Tally

logger = logging.getLogger(__name__)


class TooOldError(Exception):
    """A gradient is not pushed, for it would be too old."""


class Pacing:
    """Ties a member, its primary and its secondary to the clocks of all primaries.

    Attributes:
        settle: called before a pull: finds out what became of a push that was interrupted.
    """

    def __init__(
        self,
        max_staleness: int,
        group: RpcGroup,
        who: Who,
        trainers: Sequence[str],
        primary: Primary | None,
        secondary: Level | None,
        tally: Tally,
    ) -> None:
        self._bound = max_staleness
        self._group, self._who, self._me = group, who, group.get_cur_name()
        self._trainers = trainers
        self._primary, self._secondary = primary, secondary
        self._tally = tally
        self._clock: Clock | None = None
        self._paces: list[Pace] = []
        self._lost: set[str] = set()
        self.settle: Callable[[], object] = lambda: None
        if primary is not None:
            primary.published = self._published
            primary.level.arrived = self._arrived
            primary.may_step = self._may_step
            primary.level.when_ended = self.end
        if secondary is not None:
            secondary.ready = lambda *_: True  # what is summed cannot be refused one by one

    def services(self) -> Iterator[tuple[str, Service]]:
        """Return what is answered to the others."""
        if self._primary is not None:
            yield "enter", self._enter
            yield "claim", self._claim
            yield "give back", self._give_back
            yield "abandon", self._abandon
            yield "leave", self._leave
        if self._secondary is not None:
            yield "drain", self._drain

    def begin(self, run: Run) -> None:
        """Begin, before any gradient is pushed."""
        if (primary := self._primary) is not None:
            version = run.versions[primary.index]
            self._clock = Clock(self._bound, version, primary.level.look, self._trainers)
            for member in self._lost:
                self._clock.lost(member)
        self._paces = [
            Pace(
                partial(self._ask_enter, to),
                partial(self._ask_claim, to),
                partial(self._ask_give_back, to),
                partial(self._ask_abandon, to),
            )
            for to in self._who.primaries
        ]

    # -- the member ---------------------------------------------------------------------------

    def before_pull(self, via: str) -> list[int]:
        """Say that what is pulled next is what the next gradient is computed on.

        Returns:
            For each primary the version that the pull finds at least.
        """
        self.settle()
        if len(self._paces) > 1:  # who waits for one clock is not waited for by another
            for pace in self._paces:
                pace.give_up()
        return [pace.before_pull(via) for pace in self._paces]

    def for_push(self, via: str, versions: Sequence[int]) -> list[list[int]]:
        """Return the tickets of a gradient for each primary.

        Raises:
            TooOldError: one has none for it.
        """
        serials = []
        for pace, version in zip(self._paces, versions, strict=True):
            if (ticket := pace.for_push(via, version)) is None:
                raise TooOldError
            serials.append([ticket.serial])
        return serials

    def used(self) -> None:
        """Note that the gradient was accepted."""
        for pace in self._paces:
            pace.used()

    def taken(self, serials: Sequence[Sequence[int]]) -> None:
        """Note that the gradient with these tickets was accepted, whose push was interrupted."""
        for pace, mine in zip(self._paces, serials, strict=True):
            for each in mine:
                pace.taken(each)

    def leave(self) -> None:
        """Say that no gradient will come from here."""
        for to, pace in zip(self._who.primaries, self._paces, strict=True):
            try:
                pace.leave()
                self._ask_leave(to)
            except PparallelError as error:  # the primary has ended, and waits for nothing
                logger.debug("%s: %s", self._me, error)

    def refused(self, index: int, message: Sum) -> None:
        """Note that primary *index* refused a sum of this secondary: its gradients do not come."""
        for each in message.serials[index]:
            self._ask_give_back(self._who.primaries[index], each)

    def _ask_enter(self, to: str, via: str, back: int | None) -> Ticket:
        if to == self._me:
            return self._running().enter(self._me, via, back).result()
        return Ticket(*self._group.ask(to, "enter", (via, back)).body)

    def _ask_claim(self, to: str, via: str, version: int, back: int | None) -> Ticket | None:
        if to == self._me:
            return self._claimed(self._me, via, version, back)
        found = self._group.ask(to, "claim", (via, version, back)).body
        return None if found is None else Ticket(*found)

    def _ask_leave(self, to: str) -> None:
        if to == self._me:
            self._running().leave(self._me)
        else:
            self._group.ask(to, "leave")

    def _ask_give_back(self, to: str, serial: int) -> None:
        if to == self._me:
            self._running().give_back(serial)
        else:
            self._group.ask(to, "give back", serial)

    def _ask_abandon(self, to: str, known: int | None) -> None:
        if to == self._me:
            self._running().abandon(self._me, known)
        else:
            self._group.ask(to, "abandon", known)

    # -- the primary --------------------------------------------------------------------------

    def lose(self, member: str) -> None:
        """Wait for nothing of *member* any more, which has ended; never blocks."""
        self._lost.add(member)
        if self._clock is None or self._primary is None:
            return
        self._primary.level.fence(member, member, None)
        for via in self._clock.lost(member):
            done = partial(self._drained, self._clock, member, via)
            if via == self._me and self._secondary is not None:
                self._secondary.drain(member).add_done_callback(done)
            else:
                self._tell(via, "drain", member, done)

    def end(self, reason: BaseException) -> None:
        """Refuse whoever waits for the clock with *reason*; never blocks."""
        if self._clock is not None:
            self._clock.end(reason)

    def _running(self) -> Clock:
        if self._clock is None:
            raise ClosedError("the reducer", "is not started")
        return self._clock

    def _enter(self, asked: Request) -> Future[Reply]:
        via, back = asked.body
        reply: Future[Reply] = Future()

        def answer(ended: Future[Ticket]) -> None:
            if ended.cancelled():  # it was interrupted, and does not wait for this
                fail(reply, ClosedError("the wait for a step", "was interrupted"))
            elif (error := ended.exception()) is None:
                settle(reply, Reply(tuple(ended.result())))
            else:
                fail(reply, error)

        self._running().enter(asked.sender, via, back).add_done_callback(answer)
        return reply

    def _claim(self, asked: Request) -> Reply:
        ticket = self._claimed(asked.sender, *asked.body)
        return Reply(None if ticket is None else tuple(ticket))

    def _claimed(self, member: str, via: str, version: int, back: int | None) -> Ticket | None:
        ticket = self._running().claim(member, via, version, back)
        if ticket is None:
            self._tally.refused(1, member, too_old(version, self._bound))
        return ticket

    def _give_back(self, asked: Request) -> Reply:
        self._running().give_back(asked.body)
        return Reply()

    def _abandon(self, asked: Request) -> Reply:
        self._running().abandon(asked.sender, asked.body)
        return Reply()

    def _leave(self, asked: Request) -> Reply:
        self._running().leave(asked.sender)
        return Reply()

    def _arrived(self, message: Sum) -> None:
        self._running().arrived(message.serials[0])

    def _may_step(self, batch: Sum, is_full: bool) -> bool:
        return self._running().may_step(batch.serials[0], is_full)

    def _published(self, version: int) -> None:
        self._running().published(version)

    def _drained(self, clock: Clock, member: str, via: str, answer: Future[object]) -> None:
        if answer.exception() is None:  # else it has ended, and the clock is told of that
            clock.drained(member, via)

    def _tell(self, to: str, key: str, body: object, done: object = None) -> None:
        try:
            answer = self._group.ask_async(to, key, body)
        except PparallelError as error:  # it has ended, and the clock is told of that
            logger.debug("%s: %s", self._me, error)
        else:
            if callable(done):
                answer.add_done_callback(done)

    # -- the secondary ------------------------------------------------------------------------

    def _drain(self, asked: Request) -> Future[Reply]:
        assert self._secondary is not None
        reply: Future[Reply] = Future()

        def answer(ended: Future[None]) -> None:
            if (error := ended.exception()) is None:
                settle(reply, Reply())
            else:
                fail(reply, error)

        self._secondary.drain(asked.body).add_done_callback(answer)
        return reply
