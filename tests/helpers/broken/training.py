"""Broken reducers: what they do to training, one fault each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from typing_extensions import override

import pparallel_reducers
from broken.harness import Backends, rejected_by
from pparallel.plugin import Backend, hookimpl
from pparallel.testing import TrainingSuite
from pparallel.testing.training import Difference, Verdict
from pparallel.testing.training.plain import Buffers
from pparallel_reducers import (
    AllReduceReducerConfig,
    DilocoReducerConfig,
    GradServerReducerConfig,
    LocalReducerConfig,
)
from pparallel_reducers.all_reduce.reducer import AllReduceReducer
from pparallel_reducers.diloco.reducer import DilocoReducer
from pparallel_reducers.grad_server.reducer import GradServerReducer
from pparallel_reducers.local import LocalReducer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from pparallel_reducers.diloco.weights import Weights
    from pparallel_reducers.layout import Layout

S = TypeVar("S", bound=type[TrainingSuite])

lonely = Backends(LocalReducerConfig, pparallel_reducers)
together = Backends(AllReduceReducerConfig, pparallel_reducers)
servers = Backends(GradServerReducerConfig, pparallel_reducers)
rounds = Backends(DilocoReducerConfig, pparallel_reducers)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return [*lonely.records, *together.records, *servers.records, *rounds.records]


def rejected_alone(*cases: str) -> Callable[[S], S]:
    """Say which cases must reject the backend with one member."""
    return _rejected("test_alone", "alone_cases", cases)


def rejected_together(*cases: str) -> Callable[[S], S]:
    """Say which cases must reject it with several."""
    return _rejected("test_together", "together_cases", cases)


def _rejected(test: str, attribute: str, cases: Collection[str]) -> Callable[[S], S]:
    def mark(cls: S) -> S:
        known = {each.name for each in cls.cases()}
        if missing := set(cases) - known:
            message = f"{cls.__name__}: the suite has no case {', '.join(missing)}"
            raise AttributeError(message)
        setattr(cls, attribute, cases)
        return rejected_by(test)(cls)

    return mark


class Alone(LocalReducer):
    """A reducer of one member; a fault overrides :meth:`before` or :meth:`after`."""

    _optimizer: Optimizer
    _scheduler: LRScheduler | None

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        super().manage_model(model, optimizer, lr_scheduler)
        self._optimizer, self._scheduler = optimizer, lr_scheduler

    def parameters(self) -> list[Parameter]:
        return [each for group in self._optimizer.param_groups for each in group["params"]]

    def before(self, model: Module) -> None:
        """Called before the step."""

    def after(self, model: Module) -> None:
        """Called after it."""

    @override
    def push(self, model: Module) -> bool:
        self.before(model)
        accepted = super().push(model)
        self.after(model)
        return accepted


# -- what the optimizer steps ---------------------------------------------------------------------


class StepsPrivateCopies(Alone):
    """Has the optimizer step copies, so that hooks find no gradients in the model."""

    @override
    def push(self, model: Module) -> bool:
        given = {each: each.detach().clone().requires_grad_() for each in self.parameters()}
        for each, copied in given.items():
            copied.grad, each.grad = each.grad, None
        for group in self._optimizer.param_groups:
            group["params"] = [given[each] for each in group["params"]]
        self._optimizer.step()
        for group in self._optimizer.param_groups:
            originals = {id(copied): each for each, copied in given.items()}
            group["params"] = [originals[id(each)] for each in group["params"]]
        for each, copied in given.items():
            each.detach().copy_(copied.detach())
        return True


@rejected_alone("clip_by_norm")
class TestStepsPrivateCopies(TrainingSuite):
    config = lonely.config(StepsPrivateCopies)


class PublishesAfterTheHooks(Alone):
    """Has the optimizer step copies, and moves the model after its hooks have run."""

    @override
    def push(self, model: Module) -> bool:
        before = [each.detach().clone() for each in model.parameters()]
        moved: list[Tensor] = []

        def hide(*_: object) -> None:
            for each, old in zip(model.parameters(), before, strict=True):
                moved.append(each.detach().clone())
                each.detach().copy_(old)

        # It is the first of the hooks, and so the others see what there was before the step.
        handle = self._optimizer.register_step_post_hook(hide)
        hooks: Any = self._optimizer._optimizer_step_post_hooks
        hooks.move_to_end(handle.id, last=False)
        accepted = super().push(model)
        handle.remove()
        for each, new in zip(model.parameters(), moved, strict=True):
            each.detach().copy_(new)
        return accepted


@rejected_alone("moving_average")
class TestPublishesAfterTheHooks(TrainingSuite):
    config = lonely.config(PublishesAfterTheHooks)


class RestoresBuffers(Alone):
    """Publishes the buffers of the forward pass after the step, over what hooks have written."""

    @override
    def push(self, model: Module) -> bool:
        kept = [each.clone() for each in model.buffers()]
        accepted = super().push(model)
        for each, value in zip(model.buffers(), kept, strict=True):
            each.copy_(value)
        return accepted


@rejected_alone("buffers_of_hooks")
class TestRestoresBuffers(TrainingSuite):
    config = lonely.config(RestoresBuffers)


class HidesNewBuffers(Alone):
    """Has hooks see the buffers of the step before."""

    _last: list[Tensor]

    @override
    def begin(self, layout: Layout, model: Module) -> None:
        self._last = [each.clone() for each in model.buffers()]

    @override
    def push(self, model: Module) -> bool:
        new = [each.clone() for each in model.buffers()]
        self._fill(model, self._last)
        accepted = super().push(model)
        self._fill(model, new)
        self._last = new
        return accepted

    @staticmethod
    def _fill(model: Module, values: Sequence[Tensor]) -> None:
        for each, value in zip(model.buffers(), values, strict=True):
            each.copy_(value)


@rejected_alone("averaged_buffers")
class TestHidesNewBuffers(TrainingSuite):
    config = lonely.config(HidesNewBuffers)


class LetsTheProgramStep(Alone):
    """Steps a second time on the gradients that the program has stepped on."""

    @override
    def start(self) -> None:
        super().start()
        self._own.managed.end()  # which refuses steps of the program's own


@rejected_alone("own_steps")
class TestLetsTheProgramStep(TrainingSuite):
    config = lonely.config(LetsTheProgramStep)


class LeavesCopies(Alone):
    """Pulls nothing, as the managed model is the newest already."""

    @override
    def pull(self, model: Module) -> bool:
        return False


@rejected_alone("pulled_copy")
class TestLeavesCopies(TrainingSuite):
    config = lonely.config(LeavesCopies)


class StepsWhenItPulls(Alone):
    """Makes the step with the pull, so that gradients of a second push replace the first."""

    _kept: Sequence[Tensor | None] = ()

    @override
    def push(self, model: Module) -> bool:
        self._kept = [each.grad for each in model.parameters()]
        for each in model.parameters():
            each.grad = None
        return True

    @override
    def step(self, model: Module) -> bool:
        self.push(model)
        return self.pull(model)

    @override
    def pull(self, model: Module) -> bool:
        kept, self._kept = self._kept, []
        for each, grad in zip(model.parameters(), kept, strict=False):
            each.grad = grad
        return super().push(model) if kept else False


@rejected_alone("push_alone")
class TestStepsWhenItPulls(TrainingSuite):
    config = lonely.config(StepsWhenItPulls)


class LosesTheLayout(Alone):
    """Lays parameters out anew."""

    @override
    def after(self, model: Module) -> None:
        for each in model.parameters():
            each.data = each.data.contiguous()


@rejected_alone("channels_last")
class TestLosesTheLayout(TrainingSuite):
    config = lonely.config(LosesTheLayout)


class LeavesOthersGradients(Alone):
    """Clears the gradients of the model alone."""

    @override
    def push(self, model: Module) -> bool:
        own = {id(each) for each in model.parameters()}
        others = [each for each in self.parameters() if id(each) not in own]
        kept = [None if each.grad is None else each.grad.clone() for each in others]
        accepted = super().push(model)
        for each, grad in zip(others, kept, strict=True):
            each.grad = grad
        return accepted


@rejected_alone("loose_parameter")
class TestLeavesOthersGradients(TrainingSuite):
    config = lonely.config(LeavesOthersGradients)


class DropsWhatWasUnfrozen(Alone):
    """Clears the gradients of what was frozen at the start, and says nothing."""

    _frozen: Collection[Parameter] = ()

    @override
    def begin(self, layout: Layout, model: Module) -> None:
        self._frozen = [each for each in model.parameters() if not each.requires_grad]

    @override
    def push(self, model: Module) -> bool:
        unfrozen = [each for each in self._frozen if each.requires_grad]
        for each in unfrozen:
            each.grad = None
            each.requires_grad_(False)
        accepted = super().push(model)
        for each in unfrozen:
            each.requires_grad_(True)
        return accepted


@rejected_alone("unfrozen")
class TestDropsWhatWasUnfrozen(TrainingSuite):
    config = lonely.config(DropsWhatWasUnfrozen)


# -- gradients ------------------------------------------------------------------------------------


class JudgesBuffers(Alone):
    """Refuses every step if a buffer is not finite."""

    @override
    def push(self, model: Module) -> bool:
        if all(each.isfinite().all() for each in model.buffers()):
            return super().push(model)
        for each in model.parameters():
            each.grad = None
        return False


@rejected_alone("infinite_mask")
class TestJudgesBuffers(TrainingSuite):
    config = lonely.config(JudgesBuffers)


class StallsAtZero(Alone):
    """Looks for ever away from what was zero at first, as a degenerate factor does."""

    _stalled: Collection[Parameter] | None = None

    @override
    def before(self, model: Module) -> None:
        if self._stalled is None:
            graded = [each for each in model.parameters() if each.grad is not None]
            self._stalled = [each for each in graded if not each.grad.any()]  # type: ignore[union-attr]
        for each in self._stalled:
            if each.grad is not None:
                each.grad.zero_()


@rejected_alone("zero_first_gradient")
class TestStallsAtZero(TrainingSuite):
    config = lonely.config(StallsAtZero)


class MakesDense(Alone):
    """Hands dense copies of sparse gradients to the optimizer."""

    @override
    def before(self, model: Module) -> None:
        for each in model.parameters():
            if each.grad is not None and each.grad.is_sparse:
                each.grad = each.grad.to_dense()


@rejected_alone("sparse_adam")
class TestMakesDense(TrainingSuite):
    config = lonely.config(MakesDense)


class ReusesMemory(Alone):
    """Writes to the gradients once they were stepped on, which a hook may have kept."""

    @override
    def push(self, model: Module) -> bool:
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        accepted = super().push(model)
        for each in gradients:
            each.zero_()
        return accepted


@rejected_alone("kept_gradient")
class TestReusesMemory(TrainingSuite):
    config = lonely.config(ReusesMemory)


class RescalesBetweenPasses(Alone):
    """Rescales gradients while the member computes further ones."""

    @override
    def begin(self, layout: Layout, model: Module) -> None:
        def rescale(parameter: Parameter) -> None:
            if parameter.grad is not None:
                parameter.grad.div_(2)

        for each in model.parameters():
            each.register_post_accumulate_grad_hook(rescale)

    @override
    def before(self, model: Module) -> None:
        for each in model.parameters():
            if each.grad is not None:
                each.grad.mul_(2)


@rejected_alone("accumulation")
class TestRescalesBetweenPasses(TrainingSuite):
    config = lonely.config(RescalesBetweenPasses)


class AddsBeforeItDivides(AllReduceReducer):
    """Divides the sum of the gradients, which float16 may not hold."""

    _optimizer: Optimizer

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        def divide(*_: object) -> None:
            for each in model.parameters():
                if each.grad is not None:
                    each.grad.div_(self._member.world_size)

        optimizer.register_step_pre_hook(divide)
        super().manage_model(model, optimizer, lr_scheduler)


@rejected_together("large_float16")
class TestAddsBeforeItDivides(TrainingSuite):
    config = together.config(AddsBeforeItDivides, reduce_method="sum")


# -- NaN and infinity -----------------------------------------------------------------------------


class KnowsNoRefusal(Alone):
    """Has the option ``refuse_nan``, and steps on infinity all the same."""

    @override
    def push(self, model: Module) -> bool:
        self._config = self._config.model_copy(update={"refuse_nan": False})
        return super().push(model)


@rejected_alone("infinity_refused", "scaled_gradients")
class TestKnowsNoRefusal(TrainingSuite):
    config = lonely.config(KnowsNoRefusal)


class RefusesInSilence(Alone):
    """Drops a gradient with infinity, and logs nothing."""

    @override
    def push(self, model: Module) -> bool:
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        if all(each.isfinite().all() for each in gradients):
            return super().push(model)
        for parameter in model.parameters():
            parameter.grad = None
        return False


@rejected_alone("infinity_refused")
class TestRefusesInSilence(TrainingSuite):
    config = lonely.config(RefusesInSilence)


class LetsNanInBuffersPass(Alone):
    """Refuses gradients with NaN, and takes buffers with NaN."""

    @override
    def push(self, model: Module) -> bool:
        buffers = [each for each in model.buffers() if each.is_floating_point()]
        kept = [each.clone() for each in buffers]
        for each in buffers:
            each.nan_to_num_()
        accepted = super().push(model)
        for each, value in zip(buffers, kept, strict=True):
            each.copy_(value)
        return accepted


@rejected_alone("nan_in_buffer")
class TestLetsNanInBuffersPass(TrainingSuite):
    config = lonely.config(LetsNanInBuffersPass)


# -- schedulers and errors ------------------------------------------------------------------------


class KeepsGradientsOfAFailedStep(Alone):
    """Keeps the gradients if the scheduler raises, so that another push steps on them again."""

    @override
    def push(self, model: Module) -> bool:
        kept = [each.grad for each in model.parameters()]
        try:
            return super().push(model)
        except BaseException:
            for each, grad in zip(model.parameters(), kept, strict=True):
                each.grad = grad
            raise


@rejected_alone("failing_schedule")
class TestKeepsGradientsOfAFailedStep(TrainingSuite):
    config = lonely.config(KeepsGradientsOfAFailedStep)


class TakesEveryScheduler(LocalReducer):
    """Accepts a scheduler that needs a metric, and fails after it has moved the model."""

    _scheduler: Any = None

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        super().manage_model(model, optimizer)
        self._scheduler = lr_scheduler

    @override
    def push(self, model: Module) -> bool:
        accepted = super().push(model)
        if self._scheduler is not None:
            self._scheduler.step()
        return accepted


@rejected_alone("plateau_given")
class TestTakesEveryScheduler(TrainingSuite):
    config = lonely.config(TakesEveryScheduler)


class TakesEveryOptimizer(LocalReducer):
    """Accepts an optimizer that needs a closure, and steps the model another way."""

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        import torch

        super().manage_model(model, torch.optim.SGD(model.parameters(), lr=0.1), lr_scheduler)


@rejected_alone("closure")
class TestTakesEveryOptimizer(TrainingSuite):
    config = lonely.config(TakesEveryOptimizer)


# -- several members ------------------------------------------------------------------------------


class IsNotInLockStep(GradServerReducer):
    """Bounds no staleness: each gradient makes a step of its own."""


@rejected_together("sgd")
class TestIsNotInLockStep(TrainingSuite):
    members: ClassVar[int | Sequence[str]] = ("ps", "a", "b")
    buffers: ClassVar[Buffers] = "each step"
    config = servers.config(IsNotInLockStep)


class LosesRenamedBuffers(AllReduceReducer):
    """Averages the buffers that it finds in the model's own ``state_dict()``, by their names."""

    @override
    def stop(self) -> None:
        if not self._own.running:
            return
        model = self._own.model
        named = model.state_dict()
        lost = {name: each.clone() for name, each in model.named_buffers() if name not in named}
        super().stop()
        for name, each in model.named_buffers():
            if name in lost:
                each.copy_(lost[name])


@rejected_together("own_state_dict")
class TestLosesRenamedBuffers(TrainingSuite):
    config = together.config(LosesRenamedBuffers)


class KeepsTheDtype(DilocoReducer):
    """Rounds the outer parameters to the dtype of the model after each step."""

    @override
    def begin(self, layout: Layout, model: Module) -> None:
        super().begin(layout, model)
        if self._office is None:
            return
        assert self._office._coordinator is not None
        outer = self._office._coordinator._outer
        step = outer.step

        def step_and_round(parts: Sequence[Weights], *, last: bool) -> None:
            step(parts, last=last)
            wide = outer.state.parameters.items()
            outer.state = outer.state._replace(
                parameters={dtype: flat.to(dtype).to(flat.dtype) for dtype, flat in wide}
            )

        outer.step = step_and_round  # type: ignore[method-assign]


@rejected_together("small_bfloat16")
class TestKeepsTheDtype(TrainingSuite):
    verdicts: ClassVar[Mapping[str, Verdict]] = {"small_bfloat16": Difference("smaller steps")}
    config = rounds.config(KeepsTheDtype, inner_steps=1, outer_lr=0.3, outer_momentum=0.0)


class ForgetsMomentum(DilocoReducer):
    """Loads nothing of what it has saved."""

    @override
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        pass


@rejected_together("resumed")
class TestForgetsMomentum(TrainingSuite):
    verdicts: ClassVar[Mapping[str, Verdict]] = {"resumed": Difference("outer steps")}
    config = rounds.config(ForgetsMomentum, inner_steps=2)


class AveragesModelsForGradients(DilocoReducer):
    """Says that parameters which were averaged after own steps are those of plain torch."""


@rejected_together("adam", "clip_by_norm")
class TestAveragesModelsForGradients(TrainingSuite):
    buffers: ClassVar[Buffers] = "each step"
    config = rounds.config(
        AveragesModelsForGradients, inner_steps=1, outer_lr=1.0, outer_momentum=0.0
    )
