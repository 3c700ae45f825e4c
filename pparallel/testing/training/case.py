"""Cases: features of PyTorch that a training loop uses, and the objects of one trainer."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pparallel.testing.training.models import SHAPE, batch, perceptron
from pparallel.testing.training.verdicts import EQUAL, Verdict

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

Tolerance: TypeAlias = tuple[float, float]  #: relative and absolute


class Training:
    """The objects with which one trainer trains, in plain torch or on a reducer.

    Attributes:
        case: what it does.
        rank: which trainer it is; it draws the batches.
        model: what is trained; ``module`` is the module inside, where it is compiled.
        loose: trainable parameters that are not the model's.
        optimizer: None in a member that does not manage the model.
        scheduler: None also where the case has none.
        notes: what hooks and the loop saw where the optimizer is.
        losses: of each batch.
        accumulating: a context for backward passes before the last one of a step.
        pull: copies the newest parameters into another model; returns whether they were newer.
        extra: what the case keeps.
    """

    def __init__(self, case: Case, rank: int, *, manages: bool = True) -> None:
        self.case, self.rank = case, rank
        self.model: Module = case.model()
        self.module: Module = getattr(self.model, "_orig_mod", self.model)
        self.loose: list[Parameter] = case.loose()
        self.optimizer: Optimizer | None = case.optimizer(self) if manages else None
        self.scheduler: LRScheduler | None = None
        self.notes: dict[str, list[Any]] = {}
        self.losses: list[Tensor] = []
        self.accumulating: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.pull: Callable[[Module], bool] = self._copy_into
        self.extra: dict[str, Any] = {}
        if self.optimizer is not None:
            self.scheduler = case.scheduler(self.optimizer)
            case.attach(self, self.optimizer)
        case.prepare(self)

    def parameters(self) -> list[Parameter]:
        """Return the parameters of the model, and those that are not the model's."""
        return [*self.module.parameters(), *self.loose]

    def _copy_into(self, model: Module) -> bool:
        model.load_state_dict(self.module.state_dict())
        return True

    def note(self, what: str, value: object) -> None:
        """Note a copy of *value* under *what*."""
        self.notes.setdefault(what, []).append(copy.deepcopy(value))

    def state(self) -> dict[str, Any]:
        """Return what is saved of it in a checkpoint."""
        return copy.deepcopy(
            {
                "model": self.module.state_dict(),
                "optimizer": self.optimizer and self.optimizer.state_dict(),
                "scheduler": self.scheduler and self.scheduler.state_dict(),
            }
        )

    def load(self, state: Mapping[str, Any]) -> None:
        """Load what :meth:`state` returned."""
        self.module.load_state_dict(state["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))


class Case:
    """A feature of PyTorch; the base trains a small network by gradient descent.

    The first line of a case's docstring names the feature in the documentation. A case is
    stateless: what belongs to one training is kept in the :class:`Training`.

    Attributes:
        steps: how many steps are made.
        exact: whether one member alone comes to the same bits as plain torch.
        tolerance: relative and absolute, where several members add up in another order; None for
            the usual ones of the dtype.
        verdict: what any reducer does with it, unless the suite declares another.
        pushes: whether the program calls ``push()`` alone, without ``pull()``.
        options: of the reducer's config, beside those that are tested; a reducer without them is
            not tested.
        change_at: before which step :meth:`change` is called; the program then follows the advice
            of the refusal, calls ``stop()`` and ``start()``, and goes on.
        resume_at: before which step everything is saved, rebuilt and loaded.
        ends: a pattern of the exception that ends the training, also in plain torch.
        warns: a pattern of a warning that has to be logged.
    """

    steps: ClassVar[int] = 4
    exact: ClassVar[bool] = True
    tolerance: ClassVar[Tolerance | None] = None
    verdict: ClassVar[Verdict] = EQUAL
    pushes: ClassVar[bool] = False
    options: ClassVar[Mapping[str, Any]] = {}
    change_at: ClassVar[int | None] = None
    resume_at: ClassVar[int | None] = None
    ends: ClassVar[str | None] = None
    warns: ClassVar[str | None] = None

    @property
    def name(self) -> str:
        """Return the name, as it is in tests: ``clip_by_norm``."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def title(self) -> str:
        """Return the first line of the class's docstring, for its row in the documentation."""
        return (type(self).__doc__ or self.name).partition("\n")[0].rstrip(".")

    # -- objects ------------------------------------------------------------------------------

    def model(self) -> Module:
        """Return the model, with the same parameters in all members."""
        return perceptron()

    def loose(self) -> list[Parameter]:
        """Return trainable parameters that are not the model's."""
        return []

    def optimizer(self, training: Training) -> Optimizer:
        """Return the optimizer of the model."""
        import torch

        return torch.optim.SGD(training.parameters(), lr=0.1)

    def scheduler(self, optimizer: Optimizer) -> LRScheduler | None:
        """Return the scheduler that is given to the reducer."""
        return None

    def attach(self, training: Training, optimizer: Optimizer) -> None:
        """Attach hooks to the optimizer, where it is."""

    def prepare(self, training: Training) -> None:
        """Make what a trainer needs besides."""

    # -- steps --------------------------------------------------------------------------------

    def inputs(self, step: int, rank: int) -> Tensor:
        """Return the batch of a trainer."""
        return batch(SHAPE, 1000 * rank + step)

    def loss(self, training: Training, step: int) -> Tensor:
        """Return the loss of the trainer's batch."""
        inputs = self.inputs(step, training.rank)
        output: Tensor = training.model(inputs)
        return (output - 1).abs().square().mean()

    def backward(self, training: Training, step: int) -> None:
        """Compute the gradients of one step."""
        loss = self.loss(training, step)
        training.losses.append(loss.detach().clone())
        loss.backward()

    def before_step(self, training: Training, step: int) -> None:
        """Do what a program does between ``backward()`` and the step."""

    def step(self, training: Training, step: int, make: Callable[[], object]) -> None:
        """Make the step by *make*, which is plain torch's or the reducer's."""
        make()

    def plain_step(self, training: Training, optimizer: Optimizer) -> None:
        """Step as a program in plain torch does."""
        optimizer.step()
        if training.scheduler is not None:
            training.scheduler.step()

    def after_step(self, training: Training, step: int) -> None:
        """Do what a program does after the step."""

    def after_stop(self, training: Training) -> None:
        """Do what a program does after ``stop()``."""

    def change(self, training: Training) -> None:
        """Change the model in the middle of a run."""

    def finish(self, training: Training) -> None:
        """Note what the training has come to; called where the optimizer is."""


def groups(training: Training) -> list[dict[str, Any]]:
    """Return the groups of the optimizer's parameters, none where it is in another member."""
    return [] if training.optimizer is None else training.optimizer.param_groups


def rates(training: Training) -> list[float]:
    """Return the learning rates."""
    return [float(each["lr"]) for each in groups(training)]
