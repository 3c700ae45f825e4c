"""A push-pull gradient server."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, ref

from typing_extensions import override

from pparallel.errors import ClosedError, ConfigError, PeerLostError, did_you_mean
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.runtime.member import Member
from pparallel.runtime.pending import fail, settle
from pparallel.runtime.rpc import Reply, Request, RpcGroup, Service
from pparallel_reducers.board import Board
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.gradients import clear
from pparallel_reducers.layout import Layout, gradients_of, state_of
from pparallel_reducers.level import Level
from pparallel_reducers.primary import Primary
from pparallel_reducers.pusher import Pusher
from pparallel_reducers.stepper import Stepper, load
from pparallel_reducers.sums import Sum, rebuilt
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class _Run(NamedTuple):
    """What all members know from start to stop: the managed model, and its first version."""

    layout: Layout
    version: int


class GradServerReducer(Reducer):
    """Gradients go to a secondary, sums of them to the primary, which steps and publishes.

    A member does not wait until its gradient is reduced, only until it is queued: it trains on
    parameters that may be some steps old (``counters().staleness``).
    """

    def __init__(
        self,
        config: GradServerReducerConfig,
        *,
        member: Member,
        ordered_server: OrderedServer,
        group: RpcGroup,
        name: str,
    ) -> None:
        self._config = config
        self._member = member
        self._group = group
        self._head = member.names[0] if config.primary is None else config.primary
        self._secondaries = tuple(dict.fromkeys(config.secondaries or (self._head,)))
        _check_members(member, f"{name}.primary", [self._head])
        _check_members(member, f"{name}.secondaries", self._secondaries)
        self._tally = Tally()
        self._board = Board(ordered_server, name)
        self._primary: Primary | None = None
        self._secondary: Level | None = None
        if self.manages:
            thread = f"{member.name}-{name}-primary"
            self._primary = Primary(thread, config, self._tally, self._board)
        if member.name in self._secondaries:
            thread = f"{member.name}-{name}-secondary"
            self._secondary = Level(thread, config, self._tally, self._hand_on)
        self._pusher = Pusher(member.rank, self._secondaries, self._tally, self._fence)
        self._begun: Future[Reply] = Future()  # what the others ask for as they start
        self._finished: Future[Reply] = Future()  # and as they stop
        self._services = dict(self._roles())
        self._open = self._left = False
        self._run: _Run | None = None
        self._layout: Layout | None = None  # of the last run
        self._last: ref[Module] | None = None
        self._layouts: WeakKeyDictionary[Module, Layout] = WeakKeyDictionary()
        self._versions: WeakKeyDictionary[Module, int] = WeakKeyDictionary()

    @property
    @override
    def manages(self) -> bool:
        return self._member.name == self._head

    @property
    @override
    def trains(self) -> bool:
        dedicated = self._config.dedicated
        if dedicated is None:
            dedicated = self._member.world_size > 1
        return not (dedicated and self.manages)

    @property
    @override
    def hosting(self) -> bool:
        return bool(self._services)

    # -- life ---------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        for key, service in self._services.items():
            self._group.serve(key, service)
        self._group.when_lost(self._pusher.lose)
        self._group.when_closed(self._end)
        self._open = True

    @override
    def close(self) -> None:
        if not self._open:
            return
        self._open, self._left, self._run = False, True, None
        # The services stay until the group ends: this member has left, and they say so, while a
        # service that is missing would look like a mistake in the program.
        self._group.forget(self._pusher.lose)
        self._group.forget(self._end)
        self._end(ClosedError("the reducer"))
        for level in self._levels():
            level.join()

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        if self._primary is None:
            message = (
                f"member {self._member.name!r} does not manage the model, {self._head!r} does:"
                " call manage_model() only where 'manages' is true"
            )
            raise RuntimeError(message)
        if self._run is not None:
            message = "manage_model() comes before start(), or after stop()"
            raise RuntimeError(message)
        device = self._config.reduce_device
        self._primary.manage(Stepper(model, optimizer, lr_scheduler, device))

    @override
    def start(self) -> None:
        if not self._open:
            raise ClosedError("the reducer", "is not open")
        if self._run is not None:
            return
        run = self._begin()
        if self._secondary is not None:
            self._secondary.start(run.layout)
        self._layout, self._run = run.layout, run
        self._group.meet("start")

    @override
    def stop(self) -> None:
        if self._run is None:
            return
        self._run = None
        self._group.meet("stop-1")
        failure = self._secondary.flush() if self._secondary is not None else None
        self._group.meet("stop-2")
        try:
            self._finish()
            if failure is not None:
                raise failure
        finally:
            self._group.meet("stop-3")

    @override
    def watch(self) -> None:
        for level in self._levels():
            if (error := level.error) is not None:
                raise error

    @override
    def counters(self) -> Counters:
        return self._tally.counters()

    # -- training -----------------------------------------------------------------------------

    @override
    def push(self, model: Module) -> bool:
        if (run := self._run) is None:
            raise ClosedError("the reducer", "is not started: call start() before push() or step()")
        layout = self._layout_of(model)
        gradients = layout.gradients.pack(gradients_of(model))
        buffers = layout.buffers.pack(state_of(model).__getitem__)
        version = self._versions.get(model, run.version)
        me = self._member.name

        def send(to: str, number: int) -> bool:
            return self._send(to, layout, Sum(gradients, buffers, 1, version, [(me, number)]))

        if not self._pusher.push(send):
            run.layout.check(layout)
        clear(model.parameters())
        self._last = ref(model)
        return True

    @override
    def pull(self, model: Module) -> bool:
        if (layout := self._layout) is None:
            raise ClosedError("the reducer", "is not started: call start() before pull()")
        layout.check_shapes(self._layout_of(model))
        self._last = ref(model)
        found = self._board.newer(layout, self._versions.get(model))
        if found is None:
            return False
        flats, version = found
        load(layout, flats, model)
        self._versions[model] = version
        return True

    # -- inside -------------------------------------------------------------------------------

    def _begin(self) -> _Run:
        if self._primary is None:
            entries, version = self._group.ask(self._head, "begin").body
            return _Run(Layout(entries), version)
        self._finished = Future()
        run = _Run(*self._primary.start())
        settle(self._begun, Reply((run.layout.plain(), run.version)))
        return run

    def _finish(self) -> None:
        """Let the primary step on what is left, and take the final parameters."""
        self._pusher.account()
        if self._primary is None:
            self._group.ask(self._head, "finish")
        else:
            self._begun = Future()
            if (error := self._primary.stop()) is not None:
                fail(self._finished, error)
                raise error
            settle(self._finished, Reply())
            self.pull(self._primary.stepper.model)
        if self._last is not None and (model := self._last()) is not None:
            self.pull(model)

    def _send(self, to: str, layout: Layout, message: Sum) -> bool:
        if to == self._member.name and self._secondary is not None:
            return self._secondary.offer(to, layout.digest, lambda _: message).result()
        return self._ask_level(to, "push", layout, message)

    def _hand_on(self, message: Sum) -> None:
        """Pass a secondary's sum to the primary; called by the secondary's thread."""
        layout, me = self._layout, self._member.name
        if layout is None:
            raise ClosedError("the reducer", "is not started")
        if self._primary is not None:
            self._primary.level.offer(me, layout.digest, lambda _: message).result()
        else:
            self._ask_level(self._head, "sum", layout, message)

    def _ask_level(self, to: str, key: str, layout: Layout, message: Sum) -> bool:
        body = (layout.digest, *message.body())
        return bool(self._group.ask(to, key, body, message.memory(layout)).body)

    def _fence(self, secondary: str, number: int | None) -> tuple[int, bool]:
        me = self._member.name
        if self._primary is not None:
            return self._primary.level.fence(secondary, me, number)
        came, handed_on = self._group.ask(self._head, "fence", (secondary, number)).body
        return came, handed_on

    def _layout_of(self, model: Module) -> Layout:
        layout = self._layouts.get(model)
        if layout is None:
            layout = self._layouts[model] = Layout.of(model)
        return layout

    def _levels(self) -> list[Level]:
        primary = [] if self._primary is None else [self._primary.level]
        return primary if self._secondary is None else [*primary, self._secondary]

    def _end(self, reason: BaseException) -> None:
        for level in self._levels():
            level.close(reason)

    def _roles(self) -> dict[str, Service]:
        """Return what this member answers."""
        services: dict[str, Service] = {}
        if (secondary := self._secondary) is not None:
            services["push"] = lambda asked: self._offered(secondary, asked)
        if (primary := self._primary) is not None:
            services["sum"] = lambda asked: self._offered(primary.level, asked)
            services["fence"] = lambda asked: Reply(_fenced(primary.level, asked))
            services["begin"] = lambda _: self._begun
            services["finish"] = lambda _: self._finished
        return services

    def _offered(self, level: Level, asked: Request) -> Future[Reply]:
        digest, count, versions, ids = asked.body

        def message(layout: Layout) -> Sum:
            return rebuilt(layout, count, versions, ids, asked.buffers)

        queued = level.offer(asked.sender, digest, message)
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
