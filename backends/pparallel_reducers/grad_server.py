"""A push-pull gradient server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.board import Board
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.gradients import clear
from pparallel_reducers.layout import Layout, gradients_of, load, state_of
from pparallel_reducers.pusher import Pusher
from pparallel_reducers.roles import Roles, Run
from pparallel_reducers.sums import Sum
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

logger = logging.getLogger(__name__)


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
        events: Events,
    ) -> None:
        self._config = config
        self._member = member
        self._group = group
        self._tally = Tally(events, name)
        self._board = Board(ordered_server, name)
        self._roles = Roles(name, config, member, group, self._tally, self._board)
        secondaries = self._roles.secondaries
        self._pusher = Pusher(member.rank, secondaries, self._tally, self._roles.fence)
        self._open = False
        self._run: Run | None = None
        self._layout: Layout | None = None  # of the last run
        self._last: ref[Module] | None = None
        self._layouts: WeakKeyDictionary[Module, Layout] = WeakKeyDictionary()
        self._versions: WeakKeyDictionary[Module, int] = WeakKeyDictionary()

    @property
    @override
    def manages(self) -> bool:
        return self._roles.primary is not None

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
        return bool(self._roles.services)

    # -- life ---------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        for key, service in self._roles.services.items():
            self._group.serve(key, service)
        self._group.when_lost(self._pusher.lose)
        self._group.when_closed(self._roles.end)
        self._open = True

    @override
    def close(self) -> None:
        if not self._open:
            return
        self._open, self._run = False, None
        # The services stay until the group ends: this member has left, and they say so, while a
        # service that is missing would look like a mistake in the program.
        self._group.forget(self._pusher.lose)
        self._group.forget(self._roles.end)
        self._roles.leave()

    @override
    def release(self, error: BaseException | None) -> None:
        super().release(error)
        held = sum(level.held for level in self._roles.levels() if level.error is None)
        if held and error is None:
            logger.warning(
                "%s left with %d acknowledged gradients: they are not reduced, for stop() was not"
                " called",
                self._member.name,
                held,
            )

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        if self._roles.primary is None:
            message = (
                f"member {self._member.name!r} does not manage the model, {self._roles.head!r}"
                " does: call manage_model() only where 'manages' is true"
            )
            raise RuntimeError(message)
        if self._run is not None:
            message = "manage_model() comes before start(), or after stop()"
            raise RuntimeError(message)
        device = self._config.reduce_device
        from pparallel_reducers.stepper import Stepper

        self._roles.primary.manage(Stepper(model, optimizer, lr_scheduler, device))

    @override
    def start(self) -> None:
        if not self._open:
            raise ClosedError("the reducer", "is not open")
        if self._run is not None:
            return
        run = self._roles.begin()
        self._layouts.clear()  # what is frozen may be other than before
        if self._roles.primary is not None:
            self._versions[self._roles.primary.stepper.model] = run.version
        self._layout, self._run = run.layout, run
        self._group.meet("start")

    @override
    def stop(self) -> None:
        if self._run is None:
            return
        self._run = None
        self._group.meet("stop-1")
        failure = self._roles.flush()
        self._group.meet("stop-2")
        try:
            self._pusher.account()
            self._roles.finish()
            self._pull_last()
            if failure is not None:
                raise failure
        finally:
            self._group.meet("stop-3")

    @override
    def watch(self) -> None:
        for level in self._roles.levels():
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
            message = Sum(gradients, buffers, 1, version, [(me, number)])
            return self._roles.push(to, layout, message)

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
        self._tally.pulled(version)
        return True

    # -- inside -------------------------------------------------------------------------------

    def _pull_last(self) -> None:
        """Take the final parameters into the model that was trained, and the one managed."""
        trained = None if self._last is None else self._last()
        if self._roles.primary is not None:
            self.pull(self._roles.primary.stepper.model)
        if trained is not None:
            self.pull(trained)

    def _layout_of(self, model: Module) -> Layout:
        layout = self._layouts.get(model)
        if layout is None:
            layout = self._layouts[model] = Layout.of(model)
        return layout
