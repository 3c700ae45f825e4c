"""A model that a member steps itself, with an optimizer of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from pparallel.errors import ClosedError
from pparallel_reducers.gradients import clear, gradients
from pparallel_reducers.layout import Layout, load, state_in
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class OwnModel:
    """What was given to ``manage_model()``, and whether it may be stepped now.

    Attributes:
        layout: of the model, as it was when the last run began; None before.
        running: whether a run has begun and not ended.
    """

    def __init__(self, member: str, tally: Tally) -> None:
        self._member = member
        self._tally = tally
        self._managed: tuple[Module, Optimizer, LRScheduler | None] | None = None
        self.layout: Layout | None = None
        self.running = False

    @property
    def model(self) -> Module:
        """The model.

        Raises:
            RuntimeError: there is none.
        """
        if self._managed is None:
            message = f"member {self._member!r} must call manage_model() before start()"
            raise RuntimeError(message)
        return self._managed[0]

    def manage(self, model: Module, optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
        """Step *model* with *optimizer* from the next start on.

        Raises:
            RuntimeError: a run has begun.
        """
        if self.running:
            message = "manage_model() comes before start(), or after stop()"
            raise RuntimeError(message)
        self._managed = (model, optimizer, scheduler)

    def begin(self, layout: Layout) -> None:
        """Begin a run with the model, which has *layout*."""
        self.layout = layout
        self.running = True

    def end(self) -> None:
        """End the run; what is known of the model stays."""
        self.running = False

    def check(self, model: Module) -> Layout:
        """Return the layout of *model*; refuse one that is not managed, or cannot be stepped.

        Raises:
            ClosedError: no run has begun.
            ValueError: it is another model, or a trainable parameter has no gradient.
        """
        layout = self.managed(model)
        for _ in gradients(model.named_parameters()):
            pass  # each has one
        return layout

    def managed(self, model: Module) -> Layout:
        """Return the layout of *model*; refuse one that is not managed.

        Raises:
            ClosedError: no run has begun.
            ValueError: it is another model.
        """
        if not self.running or self.layout is None:
            raise ClosedError("the reducer", "is not started: call start() before push() or step()")
        if model is not self.model:
            message = _difference(self.layout, model)
            self._tally.refused(1, self._member, message)
            raise ValueError(message)
        return self.layout

    def pulled_into(self, model: Module) -> Layout:
        """Return the layout of the parameters that are to be pulled into *model*.

        Raises:
            ClosedError: no run has ever begun.
            ValueError: it is not like the managed one.
        """
        if self.layout is None:
            raise ClosedError("the reducer", "is not started: call start() before pull()")
        if self._managed is None or model is not self._managed[0]:
            self.layout.check_shapes(Layout.of(model))
        return self.layout

    def step(self) -> None:
        """Step on the gradients of the model; they stay.

        Raises:
            Exception: what the optimizer or the scheduler raises.
        """
        if self._managed is None:
            return
        _, optimizer, scheduler = self._managed
        optimizer.step()
        if scheduler is not None:
            scheduler.step()

    def clear(self) -> None:
        """Clear the gradients."""
        clear(self.model.parameters())


class Pulled:
    """The models of one member that parameters were pulled into, and the versions they have."""

    def __init__(self, own: OwnModel, tally: Tally) -> None:
        self._own, self._tally = own, tally
        self._versions: WeakKeyDictionary[Module, int] = WeakKeyDictionary()
        self._last: ref[Module] | None = None

    @property
    def last(self) -> Module | None:
        """The model that was pulled into last, if it still lives."""
        return None if self._last is None else self._last()

    def ask(self, model: Module) -> int | None:
        """Note that *model* is the last that was asked for; return the version that it has."""
        self._last = ref(model)
        return self._versions.get(model)

    def version(self, model: Module) -> int:
        """Return the version that *model* has, which has one."""
        return self._versions[model]

    def note(self, model: Module, version: int) -> None:
        """Note that *model* has *version*."""
        self._versions[model] = version

    def take(self, model: Module, version: int) -> None:
        """Note that *model* has *version*, and tell that it was taken."""
        self.note(model, version)
        self._tally.pulled(version)

    def copy(self, layout: Layout, model: Module, version: int) -> bool:
        """Copy the managed model, which has *version*, into *model*, unless that has it too."""
        if self.ask(model) == version:
            return False
        load(layout, state_in(layout, self._own.model), model)
        self.take(model, version)
        return True

    def clear(self) -> None:
        """Forget the versions."""
        self._versions.clear()


def _difference(layout: Layout, model: Module) -> str:
    try:
        layout.check(Layout.of(model))
    except ValueError as error:
        return str(error)
    return "this is not the model that was given to manage_model()"
