"""What one member does in a gradient server for all, and how it reaches the others that do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from pparallel.errors import ClosedError, ConfigError, PeerLostError, did_you_mean
from pparallel.runtime.member import Member
from pparallel.runtime.pending import fail, settle
from pparallel.runtime.rpc import Reply, Request, RpcGroup, Service
from pparallel_reducers.board import Board
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.layout import Layout
from pparallel_reducers.level import Level
from pparallel_reducers.primary import Primary
from pparallel_reducers.sums import Sum, rebuilt
from pparallel_reducers.tally import Tally


class Run(NamedTuple):
    """What all members know from start to stop: the managed model, and its first version."""

    layout: Layout
    version: int


class Roles:
    """One member's part: it may hold the primary, a secondary, both or neither.

    What it holds itself it reaches directly, what others hold by asking them.

    Attributes:
        head: the member that holds the primary.
        secondaries: the members that hold secondaries.
        primary: the primary, if this member holds it.
        secondary: this member's secondary, if it holds one.
        services: what it answers the others.
    """

    def __init__(
        self,
        name: str,
        config: GradServerReducerConfig,
        member: Member,
        group: RpcGroup,
        tally: Tally,
        board: Board,
    ) -> None:
        self._member = member
        self._group = group
        self.head = member.names[0] if config.primary is None else config.primary
        self.secondaries = tuple(dict.fromkeys(config.secondaries or (self.head,)))
        _check_members(member, f"{name}.primary", [self.head])
        _check_members(member, f"{name}.secondaries", self.secondaries)
        self.primary: Primary | None = None
        self.secondary: Level | None = None
        if member.name == self.head:
            self.primary = Primary(f"{member.name}-{name}-primary", config, tally, board)
        if member.name in self.secondaries:
            thread = f"{member.name}-{name}-secondary"
            self.secondary = Level(thread, config, tally, self._hand_on)
        self._begun: Future[Reply] = Future()  # what the others ask for as they start
        self._finished: Future[Reply] = Future()  # and as they stop
        self._layout = Layout(())
        self._left = False
        self.services = dict(self._services())

    # -- start and stop -----------------------------------------------------------------------

    def begin(self) -> Run:
        """Begin, once the member that holds the primary has; return what it says."""
        if self.primary is None:
            entries, version = self._group.ask(self.head, "begin").body
            run = Run(Layout(entries), version)
        else:
            self._finished = Future()
            run = Run(*self.primary.start())
            settle(self._begun, Reply((run.layout.plain(), run.version)))
        self._layout = run.layout
        if self.secondary is not None:
            self.secondary.start(run.layout)
        return run

    def flush(self) -> BaseException | None:
        """Hand on what the secondary has; return what went wrong."""
        return self.secondary.flush() if self.secondary is not None else None

    def finish(self) -> None:
        """Have the primary step on what is left, once every secondary is flushed.

        Raises:
            Exception: what made the primary fail.
        """
        if self.primary is None:
            self._group.ask(self.head, "finish")
            return
        self._begun = Future()
        if (error := self.primary.stop()) is not None:
            fail(self._finished, error)
            raise error
        settle(self._finished, Reply())

    def levels(self) -> Iterator[Level]:
        """Return the levels that this member holds."""
        if self.primary is not None:
            yield self.primary.level
        if self.secondary is not None:
            yield self.secondary

    def end(self, reason: BaseException) -> None:
        """Refuse what waits and what comes, with *reason*; never blocks."""
        for level in self.levels():
            level.close(reason)

    def leave(self) -> None:
        """End for good: whoever asks from now on is told that this member has left."""
        self._left = True
        self.end(ClosedError("the reducer"))
        for level in self.levels():
            level.join()

    # -- gradients ----------------------------------------------------------------------------

    def push(self, to: str, layout: Layout, message: Sum) -> bool:
        """Hand a gradient to the secondary of member *to*; return whether the model fits."""
        level = self.secondary if to == self._member.name else None
        return self._offer(level, to, "push", layout, message)

    def fence(self, secondary: str, number: int | None) -> tuple[int, bool]:
        """As :meth:`Level.fence` of the primary, for gradients of this member."""
        if self.primary is not None:
            return self.primary.level.fence(secondary, self._member.name, number)
        came, handed_on = self._group.ask(self.head, "fence", (secondary, number)).body
        return came, handed_on

    def _hand_on(self, message: Sum) -> None:
        """Pass the secondary's sum to the primary; called by the secondary's thread."""
        level = self.primary.level if self.primary is not None else None
        if not self._offer(level, self.head, "sum", self._layout, message):
            why = f"the primary refused {message.count} gradients: they are of another model"
            raise RuntimeError(why)

    def _offer(self, level: Level | None, to: str, key: str, layout: Layout, message: Sum) -> bool:
        if level is not None:
            me = self._member.name
            return level.offer(me, layout.digest, message.count, lambda _: message).result()
        body = (layout.digest, *message.body())
        return bool(self._group.ask(to, key, body, message.memory(layout)).body)

    # -- what others ask ----------------------------------------------------------------------

    def _services(self) -> Iterator[tuple[str, Service]]:
        if (secondary := self.secondary) is not None:
            yield "push", lambda asked: self._offered(secondary, asked)
        if (primary := self.primary) is not None:
            yield "sum", lambda asked: self._offered(primary.level, asked)
            yield "fence", lambda asked: Reply(_fenced(primary.level, asked))
            yield "begin", lambda _: self._begun
            yield "finish", lambda _: self._finished

    def _offered(self, level: Level, asked: Request) -> Future[Reply]:
        digest, count, versions, ids = asked.body

        def message(layout: Layout) -> Sum:
            return rebuilt(layout, count, versions, ids, asked.buffers)

        queued = level.offer(asked.sender, digest, count, message)
        reply: Future[Reply] = Future()

        def answer(ended: Future[bool]) -> None:
            if (error := ended.exception()) is None:
                settle(reply, Reply(ended.result()))
            elif self._left and isinstance(error, ClosedError):
                fail(reply, PeerLostError(self._member.name, "has left"))
            else:
                fail(reply, error)

        queued.add_done_callback(answer)
        return reply


def _fenced(level: Level, asked: Request) -> tuple[int, bool]:
    secondary, number = asked.body
    return level.fence(secondary, asked.sender, number)


def _check_members(member: Member, path: str, given: Iterable[str]) -> None:
    for each in given:
        if each not in member.names:
            hint = did_you_mean(each, member.names)
            message = f"{each!r} is no member; members: {', '.join(member.names)}.{hint}"
            raise ConfigError(message, path=path)
