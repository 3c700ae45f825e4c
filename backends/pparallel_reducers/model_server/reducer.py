"""A push-pull model server."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import override

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.config import ModelServerReducerConfig
from pparallel_reducers.gradients import averages, outside_inference_mode
from pparallel_reducers.layout import Layout
from pparallel_reducers.model_server.chain import Chain, State, frozen_to_undo
from pparallel_reducers.model_server.snapshot import StepSnapshot
from pparallel_reducers.own_model_reducer import OwnModelReducer

if TYPE_CHECKING:
    from torch.nn import Module


class _Pushed(NamedTuple):
    """A step that was accepted as the next version.

    Attributes:
        state: what it has.
        version: of it.
        behind: how many versions came between them and what the step was made on.
    """

    state: State
    version: int
    behind: int


class _Attempt(NamedTuple):
    """A step that is pushed, and that the chain may hold although its push raises.

    Attributes:
        number: which of this member's versions it is.
        version: of the chain.
        base: the version before it.
        stepped: what it is pushed as.
    """

    number: int
    version: int
    base: State
    stepped: State


class ModelServerReducer(OwnModelReducer):
    """Each member steps its own optimizer, then pushes its parameters as the next version.

    A push is a compare-and-swap: it is refused if another member was first. By default the step is
    then put onto the parameters of that member and pushed again, until it is accepted: a step is
    what the parameters became less what they were, so the optimizer steps once on each gradient.
    Moments are each member's own, and see its gradients alone.

    A push that raises takes nothing. Of frozen parameters, those are as before that are small or
    were written in a version before: a large one is not copied for each step. Where an interrupt
    ends the wait for the reply, the server may have stored the step; the next call then takes it
    out of the chain again.

    Source: ``PushPullModelServer`` of machin (iffiX/machin, ``machin/parallel/server``), which
    drops the step of whoever comes second; adding up steps that were computed on older parameters
    is Downpour SGD's (Dean et al., NeurIPS 2012).
    """

    def __init__(
        self,
        config: ModelServerReducerConfig,
        *,
        member: Member,
        ordered_server: OrderedServer,
        group: RpcGroup,
        name: str,
        events: Events,
    ) -> None:
        super().__init__(member, events, name)
        self._config = config
        self._group = group
        self._chain = Chain(ordered_server, name, member)
        self._base: State  # what the managed model was when it was last pushed or pulled
        self._before = StepSnapshot()
        self._attempt: _Attempt | None = None  # of a push that has not returned
        self._has_met = False  # whether the others have met this member in start() already

    # -- life ---------------------------------------------------------------------------------

    @override
    def begin(self, layout: Layout, model: Module) -> None:
        self._warn_of_other_parameters()
        self._attempt = None
        self._chain.forget()
        begins = self._member.rank == 0 and not self._has_met
        if begins:
            self._base, version, nbytes = self._chain.begin(layout, model)
            self._pulled.note(model, version)
            self._sent(nbytes)
        if not self._has_met:
            self._group.meet("start-1")
        self._has_met = True  # if the model is refused now, the others wait for another start()
        if not begins:
            self._chain.check(layout)
            self._take(layout, model)
        self._group.meet("start-2")
        self._has_met = False

    @override
    def stop(self) -> None:
        if not self._own.running:
            return
        assert self._own.layout is not None
        self._take_back(self._own.layout)
        self._own.end()
        alone = self._member.world_size == 1
        self._group.meet("stop-1")
        try:
            self._validate_tensors(self._own.layout)
            models = [self._own.model, self._pulled.last]
            self._pulled.clear()  # the program may have changed a model since it was pulled into
            for model in models:
                if model is None or (alone and self._own.is_managed(model)):
                    continue  # nobody else has stepped: what the program wrote there stays
                self.pull(model)
        finally:
            self._group.meet("stop-2")

    # -- training -----------------------------------------------------------------------------

    @override
    @outside_inference_mode
    def push(self, model: Module) -> bool:
        layout = self._own.check(model)
        self._take_back(layout)
        if self._config.refuse_nan and self._refused_as_not_finite():
            return False
        self._record(layout, model)
        try:
            outcome = self._own.step()
            if outcome.error is not None and not outcome.complete:
                raise outcome.error
            pushed = self._push(layout, model)
        except BaseException:
            self._before.restore()  # nothing was taken
            raise
        finally:
            self._before.forget()
        self._attempt = None
        self._own.clear()
        if pushed is not None:
            self._take_over(layout, model, pushed)
        if outcome.error is not None:
            raise outcome.error
        return pushed is not None

    @override
    def pull(self, model: Module) -> bool:
        layout = self._own.pulled_into(model)
        self._take_back(layout)
        if self._pulled.ask(model) == self._chain.newest():
            return False
        self._take(layout, model)
        return True

    # -- inside -------------------------------------------------------------------------------

    def _validate_tensors(self, layout: Layout) -> None:
        """Refuse to stop with a model that lacks tensors of the start.

        Raises:
            ValueError: the first one is named.
        """
        if missing := layout.first_missing(self._own.model):
            raise ValueError(f"{missing}: call stop() before such a change")

    def _record(self, layout: Layout, model: Module) -> None:
        """Record all that a step of the optimizer may change, to undo it if the push fails."""
        assert self._own.tensors is not None
        managed = self._own.managed
        parameters = [each for _, each in self._own.tensors.trainable]
        buffers = [each for _, each in self._own.tensors.buffers(model)]
        frozen = frozen_to_undo(layout, model, self._base)
        self._before.record([*parameters, *buffers, *frozen], managed.optimizer, managed.scheduler)

    def _push(self, layout: Layout, model: Module) -> _Pushed | None:
        """Push the parameters of *model*, which has made a step; None if the step is refused."""
        stepped, base = self._chain.state(layout, model), self._base
        before = since = self._pulled.version(model)
        while not self._push_attempt(layout, stepped, base, before):
            if not self._config.rebase:
                self._refuse(layout, model, before)
                return None
            newest, before = self._chain.pull(layout)
            stepped, base = _rebased(layout, stepped, base, newest), newest
        return _Pushed(stepped, before + 1, before - since)

    def _push_attempt(self, layout: Layout, stepped: State, base: State, before: int) -> bool:
        """Push *stepped* as the version after *before*, which is *base*, unless there is one."""
        self._attempt = _Attempt(self._chain.count + 1, before + 1, base, stepped)
        self._sent(stepped.nbytes)
        return self._chain.push(layout, stepped, before + 1, before)

    def _take_back(self, layout: Layout) -> None:
        """Push the newest version without the step of a push that raised, if it has that."""
        while (made := self._attempt) is not None:
            newest, version = self._chain.pull(layout)
            if self._chain.count != made.number:  # it was not stored, or is taken back
                taken_back = self._chain.count > made.number
                if taken_back and version == made.version + 1 and made.base is self._base:
                    self._pulled.note(self._own.model, version)
                self._attempt = None
                return
            state = made.base
            if version != made.version:
                state = _rebased(layout, made.base, made.stepped, newest)
            self._sent(state.nbytes)
            self._chain.push(layout, state, version + 1, version)

    def _take_over(self, layout: Layout, model: Module, pushed: _Pushed) -> None:
        """Have *model* be what was *pushed*."""
        self._base = pushed.state
        self._pulled.note(model, pushed.version)
        if pushed.behind:
            self._chain.load(layout, pushed.state, model)
            self._tally.pulled(pushed.version - 1)
        self._tally.pushed()
        self._tally.reduced(1, pushed.behind, pushed.version)

    def _refuse(self, layout: Layout, model: Module, before: int) -> None:
        if self._config.pull_on_fail:
            self._take(layout, model)
        reason = f"another member was first to push version {before + 1}"
        self._tally.refused(1, self._member.name, reason)

    def _take(self, layout: Layout, model: Module) -> None:
        """Copy the newest parameters into *model*."""
        state, version = self._chain.pull(layout)
        self._chain.load(layout, state, model)
        if self._own.is_managed(model):
            self._base = state
        self._pulled.take(model, version)

    def _sent(self, nbytes: int) -> None:
        if self._member.world_size > 1:
            self._tally.sent(nbytes)


def _rebased(layout: Layout, stepped: State, base: State, newest: State) -> State:
    """Return *newest* with what *stepped* is more than *base*.

    Buffers are averaged where that can be done: adding up changes of a running variance could make
    it negative.
    """
    flats = {dtype: flat.clone() for dtype, flat in newest.flats.items()}
    found = State(newest.section, flats)
    places = [dict(each.views()) for each in (found, stepped, base)]
    for entry in layout.entries:
        if entry.kind == "frozen":
            continue
        new, mine, old = (each[entry.name] for each in places)
        if entry.kind == "trainable":
            new += mine - old
        elif averages(mine.dtype):
            new.div_(2).add_(mine / 2)  # their sum may be out of range: masks are of such numbers
        else:
            new.copy_(mine)
    return found
