"""What one member does in a gradient server for all, and how it reaches the others that do."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress

from pparallel.errors import ClosedError, DirectoryError, PeerLostError, PparallelError
from pparallel.runtime.future import fail, settle
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import Reply, RpcGroup, Service
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.grad_server.board import Board
from pparallel_reducers.grad_server.flat import Sendables, Source, Wholes
from pparallel_reducers.grad_server.follower import Follower
from pparallel_reducers.grad_server.level import Level
from pparallel_reducers.grad_server.pacing import Pacing
from pparallel_reducers.grad_server.primary import Primary
from pparallel_reducers.grad_server.routes import Routes
from pparallel_reducers.grad_server.run import Run
from pparallel_reducers.grad_server.shares import Share
from pparallel_reducers.grad_server.who import Who, trains
from pparallel_reducers.layout import Layout, ModelTensors
from pparallel_reducers.tally import Tally

logger = logging.getLogger(__name__)


class Roles:
    """One member's part: it may hold a primary, a secondary, both or neither.

    What it holds itself it reaches directly, what others hold by asking them.

    Attributes:
        who: who has which part.
        routes: how gradients get there.
        primary: the primary, if this member holds one.
        secondary: this member's secondary, if it holds one.
        pacing: its part in bounding staleness, if that is to be.
        services: what it answers the others.
        follower: has it begin when the primary does, if it starts alone.
    """

    def __init__(
        self,
        name: str,
        config: GradServerReducerConfig,
        member: Member,
        group: RpcGroup,
        tally: Tally,
        boards: Sequence[Board],
    ) -> None:
        self._device = config.reduce_device
        self._me = me = member.name
        self._group = group
        self._boards = boards
        self.who = Who.of(name, config, member)
        self.routes = Routes(group, self.who, config, tally)
        serves = config.role != "client"
        trainers = [each for each in member.names if trains(config, self.who, member, each)]
        self._starts_alone = config.role == "server"
        self.primary: Primary | None = None
        self.secondary: Level | None = None
        self.pacing: Pacing | None = None
        if serves and me in self.who.primaries:
            index = self.who.primaries.index(me)
            self.primary = Primary(
                f"{me}-{name}-primary", index, config, tally, boards[index], trains=me in trainers
            )
        if serves and me in self.who.secondaries:
            self.secondary = Level(f"{me}-{name}-secondary", config, tally, self.routes.hand_on)
        if (bound := config.max_staleness) is not None:
            self.pacing = Pacing(
                bound, group, self.who, trainers, self.primary, self.secondary, tally
            )
        routes = self.routes
        routes.primary, routes.secondary, routes.pacing = self.primary, self.secondary, self.pacing
        self._begun: Future[Reply] = Future()  # what the others ask for as they start
        self._finished: Future[Reply] = Future()  # and as they stop
        self.follower = Follower(f"{me}-{name}-follower", self.begin, routes.ready)
        self.services = dict(self._services())

    # -- start and stop -----------------------------------------------------------------------

    def begin(self, timeout: float | None = None) -> Run:
        """Begin, once the member that holds the first primary has; return what it says.

        Raises:
            CallTimeoutError: it has not within *timeout* seconds.
        """
        for board in self._boards:
            board.forget()
        if (primary := self.primary) is not None and primary.index == 0:
            run = self._publish_all(primary)
        else:
            first = self.who.primaries[0]
            asked = self._group.ask_async(first, "begin", timeout=timeout)
            entries, versions = self._group.wait_for(asked, f"the start() of {first!r}").body
            run = Run(Layout(entries), versions)
        sources: list[Source] = []
        if self.primary is not None or self.secondary is not None:
            sources = [self._source(*each) for each in enumerate(run.shares)]
        self.routes.begin(run, sources)
        if self.pacing is not None:
            self.pacing.begin(run)
        if primary is not None:
            self._finished = Future()
            if primary.index > 0:
                self._take_first(primary, run)
            primary.start(run.shares[primary.index], run.layout.digest, sources[primary.index])
        if self.secondary is not None:
            self.secondary.start(run.layout.digest, sources)
        settle(self.routes.ready, None)
        if primary is not None and primary.index == 0:
            settle(self._begun, Reply((run.layout.plain(), run.versions)))
            if self._starts_alone:
                self._call_others()
        return run

    def flush(self) -> BaseException | None:
        """Hand on what the secondary has; return what went wrong."""
        return self.secondary.flush() if self.secondary is not None else None

    def flush_early(self) -> BaseException | None:
        """As :meth:`flush`, before the primary stops, and perhaps before it has begun."""
        fail(self.routes.ready, ClosedError("the reducer", "was stopped"))
        return self.flush()

    def flush_all(self) -> BaseException | None:
        """Hand on what all secondaries have that live; return what went wrong first."""
        failure = self.flush()
        for each in self.who.secondaries:
            if each == self._me:
                continue
            try:
                self._group.ask(each, "flush")
            except (PeerLostError, ClosedError, DirectoryError) as error:
                # It ended, or was stopped before it began, or was never made.
                logger.debug("secondary %s has nothing to hand on: %s", each, error)
            except Exception as error:  # noqa: BLE001 - it is returned
                failure = failure or error
        return failure

    def finish(self) -> None:
        """Have the primaries step on what is left, once every secondary is flushed.

        Raises:
            Exception: what made one fail, or that it ended.
        """
        failure = None
        if self.primary is not None:
            self._begun = Future()
            if self._starts_alone:  # once, while the others may ask at any time
                fail(self._begun, ClosedError("the reducer", "was stopped"))
            failure = self.primary.stop()
            if failure is None:
                settle(self._finished, Reply())
            else:
                fail(self._finished, failure)
        for each in self.who.primaries:
            try:
                if each != self._me:
                    asked = self._group.ask_async(each, "finish")
                    self._group.wait_for(asked, f"the stop() of {each!r}")
            except Exception as error:  # noqa: BLE001 - raised when all others are done
                failure = failure or error
        if failure is not None:
            raise failure

    def levels(self) -> Iterator[Level]:
        """Return the levels that this member holds."""
        if self.primary is not None:
            yield self.primary.level
        if self.secondary is not None:
            yield self.secondary

    def end(self, reason: BaseException) -> None:
        """Refuse what waits and what comes, with *reason*; never blocks."""
        fail(self.routes.ready, reason)
        for level in self.levels():
            level.close(reason)

    def lose(self, member: str, reason: str) -> None:
        """Forget what *member*, which has ended, has sent in part; never blocks."""
        self.routes.lose(member, reason)
        if self.pacing is not None:
            self.pacing.lose(member)
        if self._starts_alone and member in self.who.primaries:
            self.follower.failure = PeerLostError(member, reason)
            self.end(self.follower.failure)

    def leave(self) -> None:
        """End for good: whoever asks from now on is told that this member has left."""
        self.routes.leave()
        self.end(ClosedError("the reducer"))
        for level in self.levels():
            level.join()
        if self.primary is not None:
            self.primary.leave()

    def before_pull(self, via: str) -> list[int] | None:
        """Say that what is pulled next is what the next gradient, for *via*, is computed on.

        Returns:
            For each primary the version that the pull finds at least, None if nobody keeps count.
        """
        return None if self.pacing is None else self.pacing.before_pull(via)

    def make_due_steps(self) -> None:
        """Have what has arrived here go into steps that are due, and wait for them."""
        for level in (self.secondary, None if self.primary is None else self.primary.level):
            if level is not None:
                level.wait_for_look()

    def pushed(self) -> None:
        """Note that the gradient pushed last was accepted."""
        if self.pacing is not None:
            self.pacing.used()

    def _call_others(self) -> None:
        """Have the secondaries begin that were made before the primary; the others do so anyway."""
        for each in self.who.secondaries:
            if each != self._me:
                with suppress(PparallelError):  # it ended
                    self._group.ask_async(each, "follow")

    def _services(self) -> Iterator[tuple[str, Service]]:
        yield from self.routes.services()
        if self.primary is not None:
            yield "begin", lambda _: self._begun
            yield "finish", lambda _: self._finished
        elif self._starts_alone:
            yield "follow", self.follower.told_to
        if self.pacing is not None:
            yield from self.pacing.services()

    def _publish_all(self, primary: Primary) -> Run:
        """Publish the managed model: each share is the beginning of one primary's chain."""
        model = primary.stepper.model
        layout = ModelTensors(model).layout  # which refuses what cannot be published
        run = Run(layout, [0] * len(self._boards))
        for board, share in zip(self._boards, run.shares, strict=True):
            board.begin(share, model)
        run.versions = [each.version for each in self._boards]
        return run

    def _take_first(self, primary: Primary, run: Run) -> None:
        """Have this primary's model begin with the parameters of the first primary's."""
        model = primary.stepper.model
        run.layout.check(Layout.of(model))
        for board, share in zip(self._boards, run.shares, strict=True):
            board.pull(share, model)
        self._boards[primary.index].version = run.versions[primary.index]

    def _source(self, index: int, share: Share) -> Source:
        is_here = self.primary is not None and self.primary.index == index
        if is_here or self._device != "cpu":
            return Wholes(share.image, self._device)
        return Sendables(share.image, self._group)
