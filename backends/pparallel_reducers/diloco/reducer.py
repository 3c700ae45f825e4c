"""Distributed low-communication training."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.config import DilocoReducerConfig
from pparallel_reducers.diloco.desks import Desk, Given, RemoteDesk
from pparallel_reducers.diloco.office import Office
from pparallel_reducers.diloco.weights import Weights
from pparallel_reducers.layout import Layout, load, state_in
from pparallel_reducers.names import check_members
from pparallel_reducers.own_model_reducer import OwnModelReducer

if TYPE_CHECKING:
    from torch.nn import Module

logger = logging.getLogger(__name__)


class DilocoReducer(OwnModelReducer):
    """Members step by themselves; after every ``inner_steps`` they average, and step together.

    The outer step takes the difference between the outer parameters, with which a round began, and
    the mean of what the members made of them, as a gradient (Nesterov). It is made by one member,
    the coordinator, as soon as all others are there. The last round, which :meth:`stop` makes of
    what was stepped since the last full one, takes the mean itself.

    Source: DiLoCo, Douillard et al., arXiv 2311.08105.
    """

    def __init__(
        self,
        config: DilocoReducerConfig,
        *,
        member: Member,
        group: RpcGroup,
        name: str,
        events: Events,
    ) -> None:
        super().__init__(member, events, name)
        self._config = config
        self._group = group
        self._holder = config.coordinator or member.names[0]
        check_members(member, f"{name}.coordinator", [self._holder])
        here = self._holder == member.name
        self._office = Office(name, config, member, self._tally) if here else None
        self._remote = RemoteDesk(group, self._holder, self._tally, config.compression)
        self._desk: Desk = self._office or self._remote
        self._steps = 0  # since the outer parameters were taken
        self._made = 0  # steps that are in them, in all runs
        self._taken: tuple[Weights, int] | None = None

    @property
    @override
    def hosting(self) -> bool:
        return self._office is not None

    # -- life ---------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        if (office := self._office) is not None:
            for key, service in office.services.items():
                self._group.serve(key, service)
            self._group.when_lost(office.lose)
            self._group.when_closed(office.end)
        super().open()

    @override
    def close(self) -> None:
        if not self._open:
            return
        super().close()
        if (office := self._office) is not None:
            # The services stay until the group ends, as those of a gradient server.
            self._group.forget(office.lose)
            self._group.forget(office.end)
            office.close()

    @override
    def release(self, error: BaseException | None) -> None:
        held = self._steps if self._own.running else 0
        super().release(error)
        if held and error is None:
            logger.warning(
                "%s left with %d steps that nobody else has: they are lost, for stop() was not"
                " called",
                self._member.name,
                held,
            )

    @override
    def begin(self, layout: Layout, model: Module) -> None:
        version = self._adopt(layout, model)
        self._taken = (Weights.of(layout, model), version)
        self._tally.pulled(version)
        self._group.meet("start")
        if self._office is not None:
            self._office.all_have_begun()

    @override
    def stop(self) -> None:
        if not self._own.running or self._own.layout is None:
            return
        self._own.end()
        try:
            self._exchange(self._own.layout, stops=True)
            if (last := self._pulled.last) is not None:
                self.pull(last)
        finally:
            if self._steps:
                self._tally.lost(self._steps, self._holder)
                self._steps = 0
            self._group.meet("stop")

    @override
    def watch(self) -> None:
        if self._office is not None and self._office.error is not None:
            raise self._office.error

    # -- training -----------------------------------------------------------------------------

    @override
    def push(self, model: Module) -> bool:
        layout = self._own.check(model)
        if self._is_due():  # nobody pulled since
            self._exchange(layout)
        self._own.step()
        self._own.clear()
        self._steps += 1
        self._tally.pushed()
        return True

    @override
    def pull(self, model: Module) -> bool:
        layout = self._own.pulled_into(model)
        if model is self._own.model:
            if due := self._own.running and self._is_due():
                self._exchange(layout)
            return due
        return self._pull_into_another(layout, model)

    # -- inside -------------------------------------------------------------------------------

    def _adopt(self, layout: Layout, model: Module) -> int:
        """Begin with the coordinator's parameters; return their version."""
        if self._office is not None:
            return self._office.start(layout, state_in(layout, model), Weights.of(layout, model))
        self._remote.begin().check(layout)
        state, version = self._remote.state(layout)
        load(layout, state, model)
        return version

    def _is_due(self) -> bool:
        return self._steps >= self._config.inner_steps

    def _exchange(self, layout: Layout, *, stops: bool = False) -> None:
        """Take part in a round; count what became of the steps, and take what came of it."""
        if self._taken is None:
            return
        model = self._own.model
        weights = Weights.of(layout, model) if self._steps else None
        if weights is not None and not weights.are_finite():
            weights = None
        outcome = self._desk.hand_in(Given(*self._taken, self._steps, stops, weights))
        if self._steps or outcome.version != self._taken[1]:
            self._taken = self._desk.weights(layout)
            self._taken[0].put(layout, model)
            self._tally.pulled(self._taken[1])
        steps, self._steps = self._steps, 0
        if not outcome.accepted and steps:
            self._tally.lost(steps, self._holder)
            return
        for _ in range(steps):
            self._made += 1
            self._tally.reduced(1, 0, self._made)

    def _pull_into_another(self, layout: Layout, model: Module) -> bool:
        """Copy what is frozen of the managed model, and the outer parameters of the last round."""
        assert self._taken is not None
        weights, version = self._taken
        if self._pulled.ask(model) == version:
            return False
        load(layout, state_in(layout, self._own.model), model)
        weights.put(layout, model)
        self._pulled.take(model, version)
        return True
