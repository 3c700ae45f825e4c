"""The ways that gradients take: to a secondary, and from there to the primaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from typing_extensions import Buffer

from pparallel.errors import ClosedError, PeerLostError
from pparallel.runtime.pending import fail, settle
from pparallel.runtime.rpc import Reply, Request, RpcGroup, Service
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


class Routes:
    """How one member reaches the levels: its own directly, those of others by asking them.

    Attributes:
        primary: this member's, if it holds one.
        secondary: this member's, if it holds one.
        pacing: its part in bounding staleness, if that is to be.
    """

    primary: Primary | None = None
    secondary: Level | None = None
    pacing: Pacing | None = None

    def __init__(self, group: RpcGroup, who: Who, device: str, tally: Tally) -> None:
        self._group, self._who, self._device = group, who, device
        self._me = group.get_cur_name()
        self._courier = Courier(group, tally)
        self._run = Run(Layout(()), [0])
        self._sources: Sequence[Source] = ()  # of what the secondary sums in
        self._inboxes: list[Inbox] = []
        self._left = False

    def begin(self, run: Run, sources: Sequence[Source]) -> None:
        """Carry gradients of this run; the secondary of this member sums in *sources*."""
        self._run, self._sources = run, sources

    def lose(self, member: str, reason: str) -> None:
        """Forget what *member*, which has ended, has sent in part; never blocks."""
        for inbox in self._inboxes:
            inbox.lose(member, reason)

    def leave(self) -> None:
        """Tell whoever asks from now on that this member has left."""
        self._left = True

    def push(self, to: str, number: int, gradient: Gradient) -> bool:
        """Hand a gradient to the secondary of member *to*; return whether the model fits."""
        run, digest = self._run, gradient.layout.digest
        fits = digest == run.layout.digest
        ids = [(self._me, number)]
        serials: list[list[int]] = [[] for _ in run.versions]
        if self.pacing is not None and fits:
            serials = self.pacing.for_push(to, gradient.versions)
        squeezed = gradient.squeezed() if fits else None
        if to == self._me and self.secondary is not None:
            flats: list[Flat] = []
            if squeezed is not None:
                flats = squeezed.flats(self._device)
            elif fits:
                flats = gradient.pack(run.shares, self._sources)
            message = Sum([[each] for each in flats], 1, gradient.versions, ids, serials)
            return self.secondary.offer(to, digest, 1, lambda: message).result()
        body = None if squeezed is None else squeezed.body()
        head = (digest, 1, gradient.versions, ids, serials, body)
        if squeezed is not None or not fits:
            memory = [] if squeezed is None else squeezed.memory()
            return accepted(self._courier.send_at_once(to, "push", head, memory))
        count = sum(len(each.image.pieces) for each in run.shares)
        pieces = gradient.pieces(run.shares, self._group)
        return accepted(self._courier.send(to, "push", head, pieces, count))

    def fence(self, secondary: str, number: int | None) -> list[tuple[int, bool]]:
        """As :meth:`Level.fence` of each primary, for gradients of this member."""
        return [
            self.primary.level.fence(secondary, self._me, number)
            if self.primary is not None and each == self._me
            else self._group.ask(each, "fence", (secondary, number)).body
            for each in self._who.primaries
        ]

    def hand_on(self, message: Sum) -> None:
        """Pass the secondary's sum to the primaries; called by the secondary's thread."""
        digest = self._run.layout.digest
        here: Future[bool] | None = None
        sent: list[list[Future[Reply]]] = []
        totals: list[Flat] = []
        for index, to in enumerate(self._who.primaries):
            part = message.share(index)
            if self.primary is not None and to == self._me:
                here = self.primary.level.offer(to, digest, part.count, lambda part=part: part)  # type: ignore[misc]
            else:
                head = (digest, part.count, part.versions, part.ids, part.serials, None)
                total = part.total(0, self._sources[index])
                totals.append(total)
                pieces, count = sendable(total, self._group), len(total.image.pieces)
                sent.append(self._courier.send(to, "sum", head, pieces, count))
        answers = [accepted(each) for each in sent] + ([here.result()] if here else [])
        if not all(answers):
            why = f"a primary refused {message.count} gradients: they are of another model"
            raise RuntimeError(why)
        for total in totals:
            total.release()

    def services(self) -> Iterator[tuple[str, Service]]:
        """Return what is answered to the others."""
        if (secondary := self.secondary) is not None:
            yield "push", self._inbox(secondary, None)
        if (primary := self.primary) is not None:
            yield "sum", self._inbox(primary.level, primary.index)
            yield "fence", lambda asked: Reply(_fenced(primary.level, asked))

    def _inbox(self, level: Level, index: int | None) -> Inbox:
        """Return what takes messages for *level*: of all shares, or of one."""

        def deliver(sender: str, head: Any, memory: list[Buffer]) -> Future[Reply]:
            digest, count, versions, ids, serials, squeezed = head

            def message() -> Sum:
                run = self._run
                if squeezed is not None:
                    opened = Squeezed.received(run, squeezed, memory)
                    return Sum(
                        [], count, versions, ids, serials, lambda: opened.flats(self._device)
                    )
                images = [each.image for each in run.shares]
                if index is not None:
                    images = images[index : index + 1]
                flats = Flat.all_over(images, memory)
                return Sum([[each] for each in flats], count, versions, ids, serials)

            return self._answer(level.offer(sender, digest, count, message))

        self._inboxes.append(Inbox(deliver))
        return self._inboxes[-1]

    def _answer(self, queued: Future[bool]) -> Future[Reply]:
        reply: Future[Reply] = Future()

        def answer(ended: Future[bool]) -> None:
            if (error := ended.exception()) is None:
                settle(reply, Reply(ended.result()))
            elif self._left and isinstance(error, ClosedError):
                fail(reply, PeerLostError(self._me, "has left"))
            else:
                fail(reply, error)

        queued.add_done_callback(answer)
        return reply


def _fenced(level: Level, asked: Request) -> tuple[int, bool]:
    secondary, number = asked.body
    return level.fence(secondary, asked.sender, number)
