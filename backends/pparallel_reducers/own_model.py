"""A model that a member steps itself, with an optimizer of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from pparallel.errors import ClosedError
from pparallel_reducers.gradients import first_not_finite, first_with_nan, gradient
from pparallel_reducers.layout import Layout, ModelTensors, load, state_in, without_compilation
from pparallel_reducers.stepping import OptimizerStep, StepOutcome
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class OwnModel:
    """The model and the optimizer that were given to ``manage_model()``.

    Attributes:
        tensors: of the model, as they were when the last run began; None before.
        running: whether a run has begun and not ended.
    """

    def __init__(self, member: str, tally: Tally) -> None:
        self._member = member
        self._tally = tally
        self._managed: OptimizerStep | None = None
        self.tensors: ModelTensors | None = None
        self.running = False

    @property
    def managed(self) -> OptimizerStep:
        """The model, its optimizer and its scheduler.

        Raises:
            RuntimeError: there is none.
        """
        if self._managed is None:
            message = f"member {self._member!r} must call manage_model() before start()"
            raise RuntimeError(message)
        return self._managed

    @property
    def model(self) -> Module:
        """The model.

        Raises:
            RuntimeError: there is none.
        """
        return self.managed.model

    @property
    def layout(self) -> Layout | None:
        """Of the model, as it was when the last run began; None before."""
        return None if self.tensors is None else self.tensors.layout

    def manage(self, model: Module, optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
        """Step *model* with *optimizer* from the next start on.

        Raises:
            RuntimeError: a run has begun.
            ValueError: the step of the optimizer or the scheduler needs an argument that no reducer
                has.
        """
        if self.running:
            message = "manage_model() comes before start(), or after stop()"
            raise RuntimeError(message)
        self._managed = OptimizerStep(model, optimizer, scheduler)

    def begin(self, tensors: ModelTensors) -> None:
        """Begin a run with the model, which has *tensors*."""
        self.managed.begin()
        self.tensors = tensors
        self.running = True

    def end(self) -> None:
        """End the run; what is known of the model stays."""
        self.running = False
        if self._managed is not None:
            self._managed.end()

    def is_managed(self, model: Module) -> bool:
        """Return whether *model* is the managed one, compiled or not."""
        return self._managed is not None and without_compilation(model) is self._managed.model

    def check(self, model: Module) -> Layout:
        """Return the layout of *model*; refuse one that is not managed, or cannot be stepped.

        Raises:
            ClosedError: no run has begun.
            ValueError: it is another model, its parameters are no longer those of the start, or a
                trainable one has no gradient.
        """
        tensors = self.validate_managed(model)
        tensors.validate(model)
        tensors.buffers(model)
        for name, parameter in tensors.trainable:
            gradient(name, parameter)
        return tensors.layout

    def validate_managed(self, model: Module) -> ModelTensors:
        """Return the tensors of *model*, as they were at the start; refuse one not managed.

        Raises:
            ClosedError: no run has begun.
            ValueError: it is another model, or its optimizer has been given parameters that are not
                the model's.
        """
        if not self.running or self.tensors is None:
            raise ClosedError("the reducer", "is not started: call start() before push() or step()")
        if not self.is_managed(model):
            message = _difference(self.tensors.layout, model)
            self._tally.refused(1, self._member, message)
            raise ValueError(message)
        self.managed.validate_others()
        return self.tensors

    def pulled_into(self, model: Module) -> Layout:
        """Return the layout of the parameters that are to be pulled into *model*.

        Raises:
            ClosedError: no run has ever begun.
            ValueError: it is not like the managed one was at the start, is that and has changed, or
                cannot be copied into.
        """
        if self.tensors is None:
            raise ClosedError("the reducer", "is not started: call start() before pull()")
        if not self.is_managed(model):
            other = ModelTensors(model)
            self.tensors.layout.check_shapes(other.layout)
        elif self.running:
            self.tensors.validate(model)
        elif message := self.tensors.layout.first_missing(model):
            raise ValueError(f"{message}: call pull() before such a change")
        return self.tensors.layout

    def not_finite(self) -> str | None:
        """Return why the gradients are to be refused where ``refuse_nan`` is set, None if not."""
        assert self.tensors is not None
        named = [(name, gradient(name, each)) for name, each in self.tensors.trainable]
        others = [(name, each.grad) for name, each in self.managed.others()]
        named += [(name, each) for name, each in others if each is not None]
        if (name := first_not_finite(named)) is not None:
            return f"the gradient of {name!r} is not finite"
        if (name := first_with_nan(self.tensors.buffers(self.model))) is not None:
            return f"buffer {name!r} holds NaN"
        return None

    def step(self) -> StepOutcome:
        """As :meth:`OptimizerStep.step`."""
        return self.managed.step()

    def clear(self) -> None:
        """Clear the gradients of all that the optimizer steps."""
        self.managed.clear()


class Pulled:
    """The models of one member that parameters were pulled into, and the versions they have.

    Attributes:
        count: how often parameters were taken into one.
    """

    def __init__(self, own: OwnModel, tally: Tally) -> None:
        self._own, self._tally = own, tally
        self._versions: WeakKeyDictionary[Module, int] = WeakKeyDictionary()
        self._last: ref[Module] | None = None
        self.count = 0

    @property
    def last(self) -> Module | None:
        """The model that was pulled into last, if it still lives."""
        return None if self._last is None else self._last()

    def ask(self, model: Module) -> int | None:
        """Note that *model* is the last that was asked for; return the version that it has."""
        model = without_compilation(model)
        self._last = ref(model)
        return self._versions.get(model)

    def version(self, model: Module) -> int:
        """Return the version that *model* has, which has one."""
        return self._versions[without_compilation(model)]

    def note(self, model: Module, version: int) -> None:
        """Note that *model* has *version*."""
        self._versions[without_compilation(model)] = version

    def take(self, model: Module, version: int) -> None:
        """Note that *model* has *version*, and tell that it was taken."""
        self.note(model, version)
        self.count += 1
        self._tally.pulled(version)

    def copy(self, layout: Layout, model: Module, version: int) -> bool:
        """Copy the managed model, which has *version*, into *model*, unless that has it too."""
        if self.ask(model) == version:
            return False
        load(layout, state_in(layout, self._own.model), model)
        self.take(model, version)
        return True

    def clear(self) -> None:
        """Forget the versions, and which model was the last."""
        self._versions.clear()
        self._last = None


def _difference(layout: Layout, model: Module) -> str:
    try:
        layout.check(Layout.of(model))
    except ValueError as error:
        return str(error)
    return "this is not the model that was given to manage_model()"
