"""One step of a user's optimizer and scheduler, and what an error in it leaves behind."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pparallel.runtime import stopping
from pparallel_reducers.gradients import checksum, clear, stored
from pparallel_reducers.layout import parameters_of, without_compilation

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


logger = logging.getLogger(__name__)


class StepOutcome(NamedTuple):
    """How far a step came.

    Attributes:
        error: what was raised after parameters had moved, if anything was.
        complete: whether all parameters that have a gradient moved.
    """

    error: BaseException | None = None
    complete: bool = True


class OptimizerStep:
    """A model with the optimizer and the scheduler that step it.

    Attributes:
        model: the module itself, where a compiled one was given.
        optimizer: steps its parameters, and perhaps some that are not the model's.
        scheduler: stepped after the optimizer.
    """

    # Which thread makes a step of a reducer, by the identity of the optimizer: they may share it.
    _stepping: ClassVar[dict[int, int]] = {}

    def __init__(self, model: Module, optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
        """Take them as they are given to ``manage_model()``.

        Raises:
            TypeError: *model* is no module, or *optimizer* has no ``step()``.
            ValueError: the step of the optimizer or the scheduler needs an argument that no reducer
                has.
        """
        _validate_types(model, optimizer)
        _validate_optimizer(optimizer)
        if scheduler is not None:
            _validate_scheduler(scheduler)
        self.model = without_compilation(model)
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._counts_versions = False  # until a step has shown it
        self._others: frozenset[int] = frozenset()
        self._noted: list[Parameter] | None = None  # the optimizer's, where others() matter
        self._guard: Any = None  # against steps of the program's own
        self._epoch: int | None = None  # of the scheduler, after its last step here
        self._warned = False  # of steps of the scheduler beside

    def begin(self) -> None:
        """Refuse steps that the program makes itself, until :meth:`end`."""
        self._warn_of_foreign_parameters()
        self._epoch, self._warned = None, False
        # Not every optimizer is torch's, and wrappers may lack what the base class sets.
        hooks = getattr(self.optimizer, "_optimizer_step_pre_hooks", None)
        if self._guard is None and hooks is not None:
            self._guard = self.optimizer.register_step_pre_hook(self._refuse_own_steps)
            hooks.move_to_end(self._guard.id, last=False)  # before any other changes something

    def end(self) -> None:
        """Let the program step by itself; safe to call again."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.remove()

    def _refuse_own_steps(self, *_: object) -> None:
        if self._stepping.get(id(self.optimizer)) != threading.get_ident():
            message = (
                "optimizer.step() was called between start() and stop(), and the reducer makes the"
                " steps: call reducer.step(model) alone, and leave out optimizer.step(), also that"
                " by GradScaler.step()"
            )
            raise RuntimeError(message)

    def _warn_of_foreign_parameters(self) -> None:
        own = {id(each) for each in self.model.parameters()}
        listed = self._parameters()
        if listed and own and own.isdisjoint(map(id, listed)):
            logger.warning(
                "the optimizer that was given to manage_model() has no parameter of the model, so"
                " that the model is not trained: make it of model.parameters(), after anything"
                " that replaces them, such as load_state_dict(assign=True)"
            )

    def step(self) -> StepOutcome:
        """Step on the gradients of the model; they stay.

        Returns:
            An outcome with the error, if one was raised after parameters had moved: then the step
            counts.

        Raises:
            ClosedError: the job is ending: what only steps would not learn of it.
            BaseException: what the optimizer raised before any parameter had moved.
        """
        stopping.check()
        before = _Before(self._with_gradients(), values=not self._counts_versions)
        outer = self._stepping.get(id(self.optimizer))
        self._stepping[id(self.optimizer)] = threading.get_ident()
        try:
            self.optimizer.step()
        except BaseException as error:
            moved = before.moved()
            if not any(moved):
                raise
            return StepOutcome(error, all(moved))
        finally:
            self._leave_step(outer)
        self._counts_versions = before.all_counted()
        if self.scheduler is not None:
            try:
                self._step_scheduler(self.scheduler)
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                return StepOutcome(error)
        return StepOutcome()

    def _leave_step(self, outer: int | None) -> None:
        if outer is None:
            self._stepping.pop(id(self.optimizer), None)
        else:
            self._stepping[id(self.optimizer)] = outer

    def _step_scheduler(self, scheduler: LRScheduler) -> None:
        epoch = getattr(scheduler, "last_epoch", None)
        # Other numbers are no fault: a step that could not be pushed is taken back, or a state of
        # the scheduler was loaded.
        if self._epoch is not None and epoch == self._epoch + 1 and not self._warned:
            self._warned = True
            logger.warning(
                "the scheduler that was given to manage_model() was stepped by the program too: the"
                " reducer steps it after each step of the optimizer. Leave out scheduler.step(), or"
                " leave the scheduler out of manage_model()"
            )
        scheduler.step()
        epoch = getattr(scheduler, "last_epoch", None)
        self._epoch = epoch if isinstance(epoch, int) else None

    @contextmanager
    def gradients_set_aside(self) -> Iterator[None]:
        """Have no gradients inside the block; afterwards they are as before."""
        others = [each for _, each in self.others()]
        own = [(each, each.grad) for each in [*self.model.parameters(), *others]]
        self.clear()
        try:
            yield
        finally:
            for parameter, gradient in own:
                parameter.grad = gradient

    def clear(self) -> None:
        """Set all gradients to None that the optimizer has stepped on, the model's or not."""
        clear(parameters_of(self.model))
        for group in self._groups():
            clear(group["params"])

    def others(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the optimizer's parameters that are not the model's, with their places in it."""
        own = {id(each) for each in self.model.parameters()}
        for number, group in enumerate(self._groups()):
            for place, each in enumerate(group["params"]):
                if id(each) not in own:
                    yield f"optimizer.param_groups[{number}]['params'][{place}]", each

    def note_others(self) -> None:
        """Note which parameters are not the model's, as a run of several members begins."""
        self._noted = self._parameters()
        self._others = frozenset(id(each) for _, each in self.others())

    def validate_others(self) -> None:
        """Refuse parameters that are not the model's and were given to the optimizer later.

        Raises:
            ValueError: there is one since :meth:`note_others`.
        """
        if self._noted is None:
            return
        parameters = self._parameters()
        if len(parameters) == len(self._noted) and all(map(is_, parameters, self._noted)):
            return
        for name, each in self.others():
            if id(each) not in self._others:
                message = (
                    f"{name} is not a parameter of the model, and came to the optimizer after"
                    " start(), so that the other members do not know of it: call stop(), then"
                    " add_param_group(), then start()"
                )
                raise ValueError(message)
        self._noted = parameters

    def _parameters(self) -> list[Parameter]:
        return [each for group in self._groups() for each in group["params"]]

    def validate_dense(self) -> None:
        """Refuse an optimizer that takes sparse gradients only.

        Raises:
            ValueError: it is one.
        """
        import torch

        if isinstance(self.optimizer, torch.optim.SparseAdam):
            message = (
                "SparseAdam takes sparse gradients only, and this reducer hands dense ones to the"
                " optimizer: give it Adam or Adagrad, or choose the reducer 'local', 'diloco' or"
                " 'model_server', whose members step on their own gradients as they are"
            )
            raise ValueError(message)

    def _with_gradients(self) -> list[Parameter]:
        """Return the parameters that the optimizer steps."""
        groups = self._groups()
        listed = [each for group in groups for each in group["params"]] if groups else None
        parameters = self.model.parameters() if listed is None else listed
        return [each for each in parameters if each.grad is not None]

    def _groups(self) -> Sequence[dict[str, list[Parameter]]]:
        return getattr(self.optimizer, "param_groups", ())  # not every optimizer is torch's


class _Before:
    """What tells whether parameters have moved since now.

    An operation in place counts a version. One on ``parameter.data``, as in many optimizers outside
    of torch, does not: of these the sums of bits tell, which read all parameters once.
    """

    def __init__(self, parameters: Sequence[Parameter], *, values: bool) -> None:
        self._parameters = parameters
        self._versions = [each._version for each in parameters]
        self._sums = _sums(parameters) if values else None

    def all_counted(self) -> bool:
        """Return whether there is a new version of each, so that versions tell."""
        return bool(self._parameters) and all(self._counted())

    def moved(self) -> list[bool]:
        """Return which of them have moved."""
        counted = self._counted()
        if self._sums is None:
            return counted
        pairs = zip(self._sums, _sums(self._parameters), strict=True)
        others = [not old.equal(new) for old, new in pairs]
        return [one or other for one, other in zip(counted, others, strict=True)]

    def _counted(self) -> list[bool]:
        pairs = zip(self._parameters, self._versions, strict=True)
        return [each._version != old for each, old in pairs]


def _sums(parameters: Sequence[Parameter]) -> list[Tensor]:
    return [checksum(stored(each.detach())) for each in parameters]


def _validate_types(model: object, optimizer: object) -> None:
    import torch

    if not isinstance(model, torch.nn.Module):
        what = type(model).__name__
        message = (
            f"manage_model() takes a torch.nn.Module and its optimizer, and got a {what} first"
        )
        raise TypeError(message)
    if not callable(getattr(optimizer, "step", None)) or isinstance(optimizer, torch.nn.Module):
        what = type(optimizer).__name__
        message = f"manage_model() takes an optimizer after the model, and got a {what}"
        raise TypeError(message)


def _validate_optimizer(optimizer: Optimizer) -> None:
    if needed := _needed(optimizer.step):
        message = (
            f"{type(optimizer).__name__}.step({needed}) needs an argument, and the reducer gives it"
            " none: it steps on gradients that are there already, and cannot compute the loss"
            " again. Give it an optimizer that steps once on each gradient, such as SGD or Adam"
        )
        raise ValueError(message)


def _validate_scheduler(scheduler: LRScheduler) -> None:
    if given := _needed(scheduler.step):
        message = (
            f"{type(scheduler).__name__}.step({given}) needs a value that the reducer does not"
            f" know: leave the scheduler out of manage_model(), and call scheduler.step({given})"
            " yourself after reducer.step(), with the same value in all members that manage a model"
        )
        raise ValueError(message)


def _needed(step: Callable[..., object]) -> str:
    """Return the names of the arguments that *step* cannot do without."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature takes what it gets
        return ""
    # Where torch's schedulers wrap an optimizer's step, its signature is that of a bare function.
    return ", ".join(
        each.name
        for each in parameters
        if each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        and each.name != "self"
    )
