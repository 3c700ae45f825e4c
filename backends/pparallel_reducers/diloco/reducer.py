"""Distributed low-communication training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.config import DilocoReducerConfig
from pparallel_reducers.diloco.desks import Desk, Given, RemoteDesk
from pparallel_reducers.diloco.office import Office
from pparallel_reducers.diloco.outer import OuterState
from pparallel_reducers.diloco.rounds import LATE_ADVICE, NOT_FINITE_ADVICE
from pparallel_reducers.diloco.weights import Weights
from pparallel_reducers.gradients import first_with_nan, outside_inference_mode
from pparallel_reducers.layout import Flats, Layout, load, state_in
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
        self._office = Office(name, config, member, self._tally, group) if here else None
        self._remote = RemoteDesk(group, self._holder, self._tally, config.compression)
        self._desk: Desk = self._office or self._remote
        self._steps = 0  # since the outer parameters were taken
        self._pushes = 0  # since then, with those that were refused
        self._made = 0  # steps that are in them, in all runs
        self._taken: tuple[Weights, int] | None = None
        self._initial: tuple[Layout, Flats, int] | None = None  # adopted, until all have begun
        self._loaded: Mapping[str, Any] | None = None  # for the next start

    @property
    @override
    def hosting(self) -> bool:
        return self._office is not None

    # -- life ---------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        if (office := self._office) is not None:
            for key, service in office.services.items():
                # To cut the outer parameters into pieces copies them, once for each version.
                self._group.serve(key, service, heavy=key == "fetch")
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
        self._warn_of_other_parameters()
        version = self._adopt(layout, model)
        self._taken = (Weights.of(layout, model), version)
        if self._loaded is not None:
            self._made = self._loaded["steps"]
        self._tally.pulled(version)
        self._group.meet("start")
        self._loaded = self._initial = None
        if self._office is not None:
            self._office.all_have_begun()

    @override
    def stop(self) -> None:
        if not self._own.running or self._own.layout is None:
            return
        layout = self._own.layout
        self._own.end()
        try:
            self._validate_tensors(layout)
            self._exchange(layout, stops=True)
            if (last := self._pulled.last) is not None:
                self.pull(last)
        finally:
            if self._steps:
                self._tally.lost(self._steps, self._holder)
            self._steps = self._pushes = 0
            self._group.meet("stop")

    @override
    def watch(self) -> None:
        if self._office is not None and self._office.error is not None:
            raise self._office.error

    # -- saving and loading ---------------------------------------------------------------------

    @override
    def state_dict(self) -> dict[str, object]:
        """Return what is needed beside the state of model, optimizer and scheduler to go on.

        Each member saves its own: that of the coordinator has the outer parameters and their
        momentum, that of another what ``compression`` has left out.

        Raises:
            RuntimeError: steps were made since the last round.
        """
        if self._own.running and self._pushes:
            message = (
                f"state_dict() in the middle of a round, {self._pushes} steps after the last: save"
                f" after every {self._config.inner_steps} steps (inner_steps), when step() or"
                " pull() has made the round, or after stop()"
            )
            raise RuntimeError(message)
        if self._loaded is not None:
            return dict(self._loaded)
        state: dict[str, object] = {"backend": self._config.backend}
        if (layout := self._own.layout) is None:
            return state
        outer = None if self._office is None else self._office.taken
        state["steps"] = self._made
        state["outer"] = None if outer is None else outer.state_dict(layout)
        packer = self._remote.packer
        state["compression"] = None if packer is None else packer.state_dict()
        return state

    @override
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from *state* at the next :meth:`start`, with the model that was saved with it.

        Raises:
            RuntimeError: training has started.
            ValueError: it is of another backend, or not of the coordinator where that is here. The
                start refuses one of another model or another ``compression``.
        """
        if self._own.running:
            message = "load_state_dict() comes before start(), or after stop()"
            raise RuntimeError(message)
        if state.get("backend") != self._config.backend:
            message = (
                f"the state is of the reducer {state.get('backend', 'of another kind')!r}, and this"
                f" is {self._config.backend!r}: build the reducer that the state is from"
            )
            raise ValueError(message)
        started = "steps" in state  # otherwise it was saved before the first start
        if started and self._office is not None and state["outer"] is None:
            message = (
                f"{self._member.name!r} coordinates, and the state is of a member that does not:"
                " it has no outer parameters. Load what the coordinator has saved"
            )
            raise ValueError(message)
        self._loaded = dict(state) if started else None

    # -- training -----------------------------------------------------------------------------

    @override
    @outside_inference_mode
    def push(self, model: Module) -> bool:
        layout = self._own.check(model)
        if self._is_due():  # nobody pulled since
            self._exchange(layout)
        if self._config.refuse_nan and self._refused_as_not_finite():
            self._pushes += 1  # so that all members come to their rounds together
            return False
        outcome = self._own.step()
        self._own.clear()
        self._pushes += 1
        self._steps += 1
        self._tally.pushed()
        if outcome.error is not None:
            raise outcome.error
        return True

    @override
    def pull(self, model: Module) -> bool:
        layout = self._own.pulled_into(model)
        if self._own.is_managed(model):
            if due := self._own.running and self._is_due():
                self._exchange(layout)
            return due
        return self._pull_into_another(layout, model)

    # -- inside -------------------------------------------------------------------------------

    def _adopt(self, layout: Layout, model: Module) -> int:
        """Begin with the coordinator's parameters; return their version."""
        if self._office is not None:
            outer = self._outer(Weights.of(layout, model), layout)
            return self._office.start(layout, state_in(layout, model), outer)
        if self._initial is None:  # an interrupted start() may be made again after the others'
            begun = self._remote.begin()
            begun.check(layout)
            self._initial = (begun, *self._remote.state(layout))
        begun, state, version = self._initial
        begun.check(layout)
        load(layout, state, model)
        if self._loaded is not None and self._remote.packer is not None:
            self._remote.packer.load_state_dict(self._loaded.get("compression"))
        return version

    def _outer(self, weights: Weights, layout: Layout) -> OuterState:
        """Return the outer parameters to begin with: those of the model, as a state was loaded."""
        if self._loaded is None:
            return OuterState.of(weights, 0)
        return OuterState.loaded(self._loaded["outer"], layout, weights)

    def _validate_tensors(self, layout: Layout) -> None:
        """Refuse to stop with a model that lacks tensors of the start; then nobody waits for it.

        Raises:
            ValueError: the first one is named.
        """
        if missing := layout.first_missing(self._own.model):
            message = f"{missing}: call stop() before such a change"
            assert self._taken is not None
            self._desk.hand_in(Given(*self._taken, self._steps, True, None, message))
            raise ValueError(message)

    def _is_due(self) -> bool:
        return self._pushes >= self._config.inner_steps

    def _exchange(self, layout: Layout, *, stops: bool = False) -> None:
        """Take part in a round; count what became of the steps, and take what came of it."""
        if self._taken is None:
            return
        model = self._own.model
        weights = Weights.of(layout, model) if self._steps else None
        fault = None if weights is None else self._fault(weights, layout)
        given = None if fault is not None else weights
        outcome = self._desk.hand_in(Given(*self._taken, self._steps, stops, given, fault))
        # An interrupt so far has the same handed in again, and its outcome told again.
        if self._pushes or outcome.version != self._taken[1]:
            taken = self._desk.weights(layout)
            taken[0].put(layout, model)
            self._taken = taken
            self._tally.pulled(taken[1])
        if given is not None and (packer := self._remote.packer) is not None:
            packer.settle(outcome.accepted)
        steps, self._steps, self._pushes = self._steps, 0, 0
        if not outcome.accepted and steps:
            self._lose(steps, fault)
            return
        for _ in range(steps):
            self._made += 1
            self._tally.reduced(1, 0, self._made)

    def _fault(self, weights: Weights, layout: Layout) -> str | None:
        """Return why *weights* are not to be averaged, None if they are."""
        if (name := weights.not_finite(layout)) is not None:
            return f"parameter {name!r} is not finite. {NOT_FINITE_ADVICE}"
        if not self._config.refuse_nan:
            return None
        name = first_with_nan(layout.buffers.views(weights.buffers))
        return None if name is None else f"buffer {name!r} holds NaN. {NOT_FINITE_ADVICE}"

    def _lose(self, steps: int, fault: str | None) -> None:
        """Count *steps* that are not in the outer parameters, and say what to do."""
        self._tally.lost(steps, self._holder)
        logger.warning(
            "%s lost %d steps, and goes on from the outer parameters: %s",
            self._member.name,
            steps,
            fault or f"the round was over when they came. {LATE_ADVICE}",
        )

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
