"""The ways that gradients take: to a secondary, and from there to the primaries."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from typing_extensions import Buffer

from pparallel.errors import ClosedError, PeerLostError, PparallelError
from pparallel.runtime.future import fail, settle
from pparallel.runtime.rpc import Reply, Request, RpcGroup, Service
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.grad_server.courier import Courier, Inbox, accepted
from pparallel_reducers.grad_server.flat import Flat, Source, sendable
from pparallel_reducers.grad_server.gradient import Gradient
from pparallel_reducers.grad_server.level import Level
from pparallel_reducers.grad_server.pacing import Pacing
from pparallel_reducers.grad_server.primary import Primary
from pparallel_reducers.grad_server.run import Run
from pparallel_reducers.grad_server.squeezed import Squeezed
from pparallel_reducers.grad_server.sums import Sum
from pparallel_reducers.grad_server.who import Who
from pparallel_reducers.layout import Layout
from pparallel_reducers.tally import Tally

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _InDoubt:
    """A push that ended before it was known whether the gradient was taken, as by an interrupt.

    Attributes:
        to: the member whose secondary it went to.
        number: which it is.
        gradient: the gradient.
        serials: for each primary, its ticket.
        taken: whether it is known that the secondary has it.
    """

    to: str
    number: int
    gradient: Gradient
    serials: list[list[int]]
    taken: bool = False


class Routes:
    """How one member reaches the levels: its own directly, those of others by asking them.

    Attributes:
        primary: this member's, if it holds one.
        secondary: this member's, if it holds one.
        pacing: its part in bounding staleness, if that is to be.
        ready: what is pushed to the secondary waits for it.
    """

    primary: Primary | None = None
    secondary: Level | None = None
    pacing: Pacing | None = None

    def __init__(
        self, group: RpcGroup, who: Who, config: GradServerReducerConfig, tally: Tally
    ) -> None:
        self._group, self._who, self._device = group, who, config.reduce_device
        self._mean = config.reduce_method == "mean"
        self._me = group.get_cur_name()
        # A member's clients count their gradients each by itself.
        self._sender = f"{self._me}/{uuid4().hex}" if config.role == "client" else self._me
        self._stops_alone = config.role == "server"
        self.ready: Future[None] = Future()
        if not self._stops_alone:  # else it is completed once the secondary has begun
            self.ready.set_result(None)
        self._tally = tally
        self._accepted = -1  # the number of the gradient that was accepted last
        self._in_doubt: _InDoubt | None = None
        self._given_up: Counter[str] = Counter()  # pushes that were and were taken, by secondary
        self._courier = Courier(group, tally)
        self._run = Run(Layout(()), [0])
        self._sources: Sequence[Source] = ()  # of what the secondary sums in
        self._inboxes: list[Inbox] = []
        self._left = False

    def begin(self, run: Run, sources: Sequence[Source]) -> None:
        """Carry gradients of this run; the secondary of this member sums in *sources*."""
        self._run, self._sources = run, sources
        if self.pacing is not None:
            self.pacing.settle = self.settle

    def lose(self, member: str, reason: str) -> None:
        """Forget what *member*, which has ended, has sent in part; never blocks."""
        for inbox in self._inboxes:
            inbox.lose(member, reason)

    def leave(self) -> None:
        """Tell whoever asks from now on that this member has left."""
        self._left = True

    def push(self, to: str, number: int, gradient: Gradient) -> bool | None:
        """Hand a gradient to the secondary of member *to*, unless that has this number already.

        Returns:
            Whether the model fits; None: that secondary was stopped, and no other with it.
        """
        if self.settle_last(number) or number == self._accepted:
            return True
        run, digest = self._run, gradient.layout.digest
        fits = digest == run.layout.digest
        serials: list[list[int]] = [[] for _ in run.versions]
        if self.pacing is not None and fits:
            serials = self.pacing.for_push(to, gradient.versions)
        try:
            accepted = self._send(to, number, gradient, serials)
            if accepted:
                gradient.settle()
                if self.pacing is not None:
                    self.pacing.used()
            self._accepted = number if accepted else self._accepted
        except BaseException:
            self._in_doubt = _InDoubt(to, number, gradient, serials)
            raise
        return accepted

    def settle(self) -> bool:
        """Return whether a gradient was taken whose push was interrupted; its ticket is then used.

        Whether it was repeated, or given up, is seen at the next push.
        """
        if (doubt := self._in_doubt) is None:
            return False
        if not doubt.taken and self._has_come(doubt.to, doubt.number):
            if self.pacing is not None:
                self.pacing.taken(doubt.serials)
            doubt.taken = True
        return doubt.taken

    def settle_last(self, number: int | None = None) -> bool:
        """Settle a push that was interrupted; unless *number* repeats it, it was given up.

        Returns:
            Whether *number* repeats it, and it was taken.
        """
        taken, doubt = self.settle(), self._in_doubt
        self._in_doubt = None
        if doubt is None or not taken:
            return False
        doubt.gradient.settle()
        if doubt.number != number:
            self._given_up[doubt.to] += 1
            self._tally.pushed()
        return doubt.number == number

    def _has_come(self, to: str, number: int) -> bool:
        if to == self._me and self.secondary is not None:
            return self.secondary.has_come(to, self._sender, number)
        try:  # as the push was sent, so that the two keep their order
            asked = self._group.ask_async(to, "has come", (self._sender, number))
            return bool(asked.result().body)
        except PparallelError as error:  # it has ended, and the primaries are told of that
            logger.debug("%s: %s", self._me, error)
            return False

    def _send(
        self, to: str, number: int, gradient: Gradient, serials: list[list[int]]
    ) -> bool | None:
        run, digest = self._run, gradient.layout.digest
        fits = digest == run.layout.digest
        ids = [(self._sender, number)]
        squeezed = gradient.squeezed() if fits else None
        if to == self._me and self.secondary is not None:
            flats: list[Flat] = []
            if squeezed is not None:
                flats = squeezed.flats(self._device)
            elif fits:
                flats = gradient.pack(run.shares, self._sources)
            terms = [[each] for each in flats]
            message = Sum(terms, 1, gradient.versions, ids, serials, self._mean)
            return self.secondary.offer(to, digest, 1, lambda: message).result()
        body = None if squeezed is None else squeezed.body()
        head = (digest, 1, gradient.versions, ids, serials, body)
        if squeezed is not None or not fits:
            memory = [] if squeezed is None else squeezed.memory()
            return accepted(self._courier.send_at_once(to, "push", head, memory))
        count = sum(len(each.image.pieces) for each in run.shares)
        pieces = gradient.pieces(run.shares, self._group)
        return accepted(self._courier.send(to, "push", head, pieces, count))

    def leave_secondaries(self, secondaries: Iterable[str]) -> None:
        """Tell *secondaries* that this client pushes no more, so that they keep nothing of it."""
        for each in secondaries:
            self._tell(each, "forget", self._sender)

    def _tell(self, to: str, key: str, body: object) -> None:
        try:
            self._group.ask_async(to, key, body)
        except PparallelError as error:  # it has ended, and keeps nothing
            logger.debug("%s: %s", self._me, error)

    def _forget_at_primaries(self, sender: str) -> None:
        for each in self._who.primaries:
            if self.primary is not None and each == self._me:
                self.primary.level.forget(sender)
            else:
                self._tell(each, "forget sums", sender)

    def fence(self, secondary: str, number: int | None) -> list[tuple[int, bool]]:
        """As :meth:`Level.fence` of each primary, for gradients of this member.

        Those that were pushed and given up are not among those that came, as they were not
        acknowledged.
        """
        doubt, given_up = self._in_doubt, self._given_up[secondary]
        if doubt is None or doubt.to != secondary:
            return [(came - given_up, has) for came, has in self._fence(secondary, number)]
        fenced = self._fence(secondary, doubt.number)
        self._in_doubt = None
        if any(has for _, has in fenced):
            doubt.gradient.settle()
            if number is None:  # given up, and reduced
                self._tally.pushed()
        return [(came - given_up, has) for came, has in fenced]

    def _fence(self, secondary: str, number: int | None) -> list[tuple[int, bool]]:
        return [
            self.primary.level.fence(secondary, self._sender, number)
            if self.primary is not None and each == self._me
            else self._group.ask(each, "fence", (secondary, self._sender, number)).body
            for each in self._who.primaries
        ]

    def hand_on(self, message: Sum) -> None:
        """Pass the secondary's sum to the primaries; called by the secondary's thread."""
        digest = self._run.layout.digest
        answers: list[Callable[[], bool | None]] = []
        totals: list[Flat] = []
        for index, to in enumerate(self._who.primaries):
            part = message.share(index)
            if self.primary is not None and to == self._me:
                share = partial(message.share, index)
                offered = self.primary.level.offer(to, digest, part.count, share)
                answers.append(offered.result)
            else:
                head = (digest, part.count, part.versions, part.ids, part.serials, None)
                total = part.total(0, self._sources[index])
                totals.append(total)
                pieces, count = sendable(total, self._group), len(total.image.pieces)
                sent = self._courier.send(to, "sum", head, pieces, count)
                answers.append(partial(accepted, sent))
        taken = [self._on_answer(index, message, each()) for index, each in enumerate(answers)]
        if not all(taken):  # one that not all primaries have is lost
            self._tally.lost(message.count, self._who.primaries[taken.index(False)])
        for total in totals:
            total.release()

    def _on_answer(self, index: int, message: Sum, answer: bool | None) -> bool:
        to = self._who.primaries[index]
        if answer is None:
            why = f"{to} was stopped before it had {message.count} gradients that were taken"
            raise RuntimeError(why)
        if not answer:
            logger.warning("%s: primary %s refused %d gradients", self._me, to, message.count)
            if self.pacing is not None:
                self.pacing.refused(index, message)
        return answer

    def services(self) -> Iterator[tuple[str, Service]]:
        """Return what is answered to the others."""
        if (secondary := self.secondary) is not None:
            yield "push", self._inbox(secondary, None)
            yield "has come", partial(self._come, secondary)
            yield "forget", partial(_forget_at, secondary)
            secondary.forgotten = self._forget_at_primaries
            if self._stops_alone:
                yield "flush", lambda _: _replied(_then(self.ready, secondary.flush_soon))
        if (primary := self.primary) is not None:
            yield "sum", self._inbox(primary.level, primary.index)
            yield "fence", lambda asked: Reply(primary.level.fence(*asked.body))
            yield "forget sums", partial(_forget_at, primary.level)

    def _come(self, level: Level, asked: Request) -> Future[Reply]:
        def look() -> Future[Reply]:
            found: Future[Reply] = Future()
            found.set_result(Reply(level.has_come(asked.sender, *asked.body)))
            return found

        return _then(self.ready, look)

    def _inbox(self, level: Level, index: int | None) -> Inbox:
        """Return what takes messages for *level*: of all shares, or of one."""

        def deliver(sender: str, head: Any, memory: list[Buffer]) -> Future[Reply]:
            digest, count, versions, ids, serials, squeezed = head

            def message() -> Sum:
                run = self._run
                if squeezed is not None:
                    opened = Squeezed.received(run, squeezed, memory)
                    flats = partial(opened.flats, self._device)
                    return Sum([], count, versions, ids, serials, self._mean, flats)
                images = [each.image for each in run.shares]
                if index is not None:
                    images = images[index : index + 1]
                terms = [[each] for each in Flat.all_over(images, memory, count)]
                return Sum(terms, count, versions, ids, serials, self._mean)

            offered = partial(level.offer, sender, digest, count, message)
            if index is not None or (self.ready.done() and self.ready.exception() is None):
                return self._answer(offered())
            return self._answer(_then(self.ready, offered))

        self._inboxes.append(Inbox(deliver))
        return self._inboxes[-1]

    def _answer(self, queued: Future[bool]) -> Future[Reply]:
        reply: Future[Reply] = Future()

        def answer(ended: Future[bool]) -> None:
            if (error := ended.exception()) is None:
                settle(reply, Reply(ended.result()))
            elif self._left and isinstance(error, ClosedError):
                fail(reply, PeerLostError(self._me, "has left"))
            elif self._stops_alone and isinstance(error, ClosedError):
                settle(reply, Reply())
            else:
                fail(reply, error)

        queued.add_done_callback(answer)
        return reply


def _forget_at(level: Level, asked: Request) -> Reply:
    level.forget(asked.body)
    return Reply()


def _then(first: Future[None], begin: Callable[[], Future[T]]) -> Future[T]:
    """Return a future of what *begin* returns once *first* is done, or of why that failed."""
    end: Future[T] = Future()

    def follow(ended: Future[T]) -> None:
        if (error := ended.exception()) is not None:
            fail(end, error)
        else:
            settle(end, ended.result())

    def go_on(ended: Future[None]) -> None:
        try:
            ended.result()
            begin().add_done_callback(follow)
        except Exception as error:  # noqa: BLE001 - it is who waits that is told
            fail(end, error)

    first.add_done_callback(go_on)
    return end


def _replied(flushed: Future[None]) -> Future[Reply]:
    reply: Future[Reply] = Future()

    def answer(ended: Future[None]) -> None:
        if (error := ended.exception()) is not None:
            fail(reply, error)
        else:
            settle(reply, Reply())

    flushed.add_done_callback(answer)
    return reply
