"""The cases of the training suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from typing_extensions import override

from pparallel.testing.training.case import Case, Tolerance, Training, rates
from pparallel.testing.training.models import (
    Adapted,
    Cached,
    Complex,
    Counting,
    Extended,
    Gated,
    Heads,
    Masked,
    Normalized,
    PartlyUsed,
    Renamed,
    Single,
    Tied,
    Words,
    batch,
    perceptron,
    seeded,
)
from pparallel.testing.training.verdicts import Refused, Verdict

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

# -- optimizers -----------------------------------------------------------------------------------


class Sgd(Case):
    """SGD."""


class Momentum(Case):
    """SGD with Nesterov momentum."""

    @override
    def optimizer(self, training: Training) -> Optimizer:
        return torch.optim.SGD(training.parameters(), lr=0.1, momentum=0.9, nesterov=True)


class Adam(Case):
    """Adam."""

    @override
    def optimizer(self, training: Training) -> Optimizer:
        return torch.optim.Adam(training.parameters(), lr=0.05)


class AdamW(Case):
    """AdamW with weight decay."""

    @override
    def optimizer(self, training: Training) -> Optimizer:
        return torch.optim.AdamW(training.parameters(), lr=0.05, weight_decay=0.1)


class ParameterGroups(Case):
    """Several parameter groups."""

    @override
    def optimizer(self, training: Training) -> Optimizer:
        first, *_, last = training.module.children()
        return torch.optim.SGD(
            [
                {"params": first.parameters(), "lr": 0.2, "weight_decay": 0.1},
                {"params": last.parameters(), "momentum": 0.9},
            ],
            lr=0.05,
        )


# -- gradients and hooks --------------------------------------------------------------------------


class Closure(Case):
    """An optimizer whose `step()` needs a closure (`LBFGS`)."""

    verdict: ClassVar[Verdict] = Refused(
        ValueError,
        r"(?s)step\(.*needs.*(SGD|Adam)",
        "`manage_model()` refuses an optimizer whose `step()` needs an argument: the reducer cannot"
        " compute the loss again",
    )

    @override
    def optimizer(self, training: Training) -> Optimizer:
        return torch.optim.LBFGS(training.parameters())


class ClipByNorm(Case):
    """Clipping by norm in a step pre-hook."""

    @override
    def attach(self, training: Training, optimizer: Optimizer) -> None:
        def clip(*_: object) -> None:
            nn.utils.clip_grad_norm_(training.module.parameters(), 0.05)

        optimizer.register_step_pre_hook(clip)


class ClipByValue(Case):
    """Clipping by value before the step."""

    @override
    def before_step(self, training: Training, step: int) -> None:
        nn.utils.clip_grad_value_(training.module.parameters(), 0.02)


class MovingAverage(Case):
    """Moving average of the parameters (EMA) in a step post-hook."""

    @override
    def attach(self, training: Training, optimizer: Optimizer) -> None:
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
        averaged = torch.optim.swa_utils.AveragedModel(training.module, multi_avg_fn=average)
        training.extra["average"] = averaged
        optimizer.register_step_post_hook(lambda *_: averaged.update_parameters(training.module))

    @override
    def finish(self, training: Training) -> None:
        training.note("average", [*training.extra["average"].parameters()])


class OwnSteps(Case):
    """`optimizer.step()` by the program too."""

    verdict: ClassVar[Verdict] = Refused(
        RuntimeError,
        r"optimizer\.step\(\).*reducer\.step\(model\)",
        "`optimizer.step()` raises between `start()` and `stop()` in the members that manage the"
        " model: leave it out, as the reducer makes the steps",
        managing=True,
    )

    @override
    def step(self, training: Training, step: int, make: Callable[[], object]) -> None:
        if training.optimizer is not None:
            training.optimizer.step()
        make()


class KeptGradient(Case):
    """Gradients that a hook keeps."""

    @override
    def attach(self, training: Training, optimizer: Optimizer) -> None:
        kept = training.extra["kept"] = list[Any]()

        def keep(*_: object) -> None:
            gradients = [each.grad for each in training.module.parameters()]
            kept.append(gradients)
            training.note("gradients at the step", gradients)

        optimizer.register_step_pre_hook(keep)

    @override
    def finish(self, training: Training) -> None:
        training.note("gradients afterwards", training.extra["kept"])


class Accumulation(Case):
    """Gradient accumulation."""

    @override
    def backward(self, training: Training, step: int) -> None:
        with training.accumulating():
            super().backward(training, step)
        super().backward(training, step + 500)


class LooseParameter(Case):
    """A parameter of the optimizer that is not the model's."""

    @override
    def loose(self) -> list[Parameter]:
        return [nn.Parameter(torch.zeros(1))]

    @override
    def loss(self, training: Training, step: int) -> Tensor:
        (scale,) = training.loose
        return (super().loss(training, step) * (-scale).exp() + scale).sum()

    @override
    def finish(self, training: Training) -> None:
        training.note("loose", training.loose)


# -- schedulers -----------------------------------------------------------------------------------


class Scheduled(Case):
    """The learning rate that a scheduler comes to is noted."""

    @override
    def finish(self, training: Training) -> None:
        training.note("rates", rates(training))


class StepSchedule(Scheduled):
    """Scheduler: `StepLR`."""

    @override
    def scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


class CosineSchedule(Scheduled):
    """Scheduler: `CosineAnnealingLR`."""

    @override
    def scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)


class PlateauByHand(Scheduled):
    """Scheduler: `ReduceLROnPlateau`, stepped by the program."""

    @override
    def prepare(self, training: Training) -> None:
        if training.optimizer is not None:
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
            training.extra["plateau"] = plateau(training.optimizer, factor=0.5, patience=0)

    @override
    def after_step(self, training: Training, step: int) -> None:
        if training.optimizer is not None:
            training.extra["plateau"].step(1.0)


class PlateauGiven(Case):
    """Scheduler: `ReduceLROnPlateau`, given to `manage_model()`."""

    verdict: ClassVar[Verdict] = Refused(
        ValueError,
        r"(?s)step\(.*(yourself|after step|after each step)",
        "`manage_model()` refuses a scheduler whose `step()` needs an argument: the program keeps"
        " it and calls `scheduler.step(metric)` after `reducer.step()`",
    )

    @override
    def scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


class FailingSchedule(Scheduled):
    """A scheduler that raises."""

    ends: ClassVar[str | None] = "no rate for step 2"

    @override
    def scheduler(self, optimizer: Optimizer) -> LRScheduler:
        def rate(step: int) -> float:
            if step == 2:
                raise LookupError(self.ends)
            return 1.0

        return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


# -- which parameters are trained -----------------------------------------------------------------


class TiedWeights(Case):
    """Tied weights."""

    @override
    def model(self) -> Module:
        return seeded(Tied())


class Frozen(Case):
    """Frozen before `start()`."""

    @override
    def model(self) -> Module:
        model = perceptron()
        model[0].requires_grad_(False)
        return model


class Changed(Case):
    """Which parameters are trained changes between two steps."""

    steps = 5
    change_at: ClassVar[int | None] = 2

    @override
    def optimizer(self, training: Training) -> Optimizer:
        return torch.optim.SGD(training.parameters(), lr=0.1, momentum=0.9)


class Unfrozen(Changed, Frozen):
    """Unfrozen after `start()`."""

    verdict: ClassVar[Verdict] = Refused(
        ValueError,
        r"'0\.weight'.*stop\(\).*start\(\)",
        "`push()` and `pull()` name the parameter; after `stop()` and `start()` it is trained",
    )

    @override
    def change(self, training: Training) -> None:
        training.module.requires_grad_(True)


class FrozenLater(Changed):
    """Frozen after `start()`."""

    verdict: ClassVar[Verdict] = Unfrozen.verdict

    @override
    def change(self, training: Training) -> None:
        next(training.module.children()).requires_grad_(False)
        training.module.zero_grad()


class ParameterAdded(Changed):
    """A parameter added after `start()`."""

    verdict: ClassVar[Verdict] = Refused(
        ValueError,
        r"'gain'.*stop\(\).*start\(\)",
        "`push()` and `pull()` name the parameter; after `stop()` and `start()` it is trained, if"
        " the program has added it to the optimizer",
    )

    @override
    def model(self) -> Module:
        return Extended()

    @override
    def change(self, training: Training) -> None:
        gain = nn.Parameter(torch.full((2,), 1.5))
        training.module.register_parameter("gain", gain)
        if training.optimizer is not None:
            training.optimizer.add_param_group({"params": [gain]})


class ParameterWithoutGradient(Case):
    """A trainable parameter without gradient."""

    verdict: ClassVar[Verdict] = Refused(
        ValueError,
        r"'unused'.* no gradient.*(requires_grad_|same parameters).* \+ 0 \* sum\(",
        "`push()` names it: freeze it before `start()`, or add the zero term to the loss where"
        " only some batches use it",
    )

    @override
    def model(self) -> Module:
        return PartlyUsed()


class UnusedHead(Case):
    """A head that a batch does not use, with the zero term in the loss."""

    @override
    def model(self) -> Module:
        return seeded(Heads())

    @override
    def loss(self, training: Training, step: int) -> Tensor:
        used = (training.rank + step) % 2
        output: Tensor = training.model(self.inputs(step, training.rank), used)
        head = training.module.get_submodule(f"heads.{1 - used}")
        zero = 0 * sum(each.sum() for each in head.parameters())
        return (output - 1).abs().square().mean() + zero


# -- what gradients are like ----------------------------------------------------------------------


class ZeroFirstGradient(Case):
    """A first gradient of zero, behind a gate."""

    steps = 8

    @override
    def model(self) -> Module:
        model = Gated()
        seeded(model.layer)
        return model

    @override
    def inputs(self, step: int, rank: int) -> Tensor:
        return batch((6, 6), 1000 * rank + step)


class SparseGradients(Case):
    """Sparse gradients with SGD."""

    exact = False  # rows that occur twice are added in another order

    @override
    def model(self) -> Module:
        return seeded(Words())

    @override
    def inputs(self, step: int, rank: int) -> Tensor:
        return (8 * super().inputs(step, rank)).long()


class SparseAdam(SparseGradients):
    """Sparse gradients with `SparseAdam`."""

    @override
    def optimizer(self, training: Training) -> Optimizer:
        return torch.optim.SparseAdam(training.parameters(), lr=0.05)


class OfDtype(Case):
    """All parameters are of one dtype."""

    dtype: ClassVar[torch.dtype]

    @override
    def model(self) -> Module:
        return perceptron().to(self.dtype)

    @override
    def inputs(self, step: int, rank: int) -> Tensor:
        return super().inputs(step, rank).to(self.dtype)


class Float16(OfDtype):
    """float16 parameters."""

    dtype = torch.float16
    tolerance: ClassVar[Tolerance | None] = (5e-3, 5e-3)


class Bfloat16(OfDtype):
    """bfloat16 parameters."""

    dtype = torch.bfloat16
    tolerance: ClassVar[Tolerance | None] = (3e-2, 3e-2)


class Float64(OfDtype):
    """float64 parameters."""

    dtype = torch.float64


class ComplexParameters(Case):
    """Complex parameters."""

    @override
    def model(self) -> Module:
        return Complex()


class GivenGradient(Case):
    """The gradient of a single parameter is given."""

    dtype: ClassVar[torch.dtype]
    value: ClassVar[float]
    lr: ClassVar[float]

    @override
    def model(self) -> Module:
        return Single(self.dtype, 1.0)

    @override
    def optimizer(self, training: Training) -> Optimizer:
        return torch.optim.SGD(training.parameters(), lr=self.lr)

    @override
    def inputs(self, step: int, rank: int) -> Tensor:
        return torch.full((3,), self.value, dtype=self.dtype)

    @override
    def loss(self, training: Training, step: int) -> Tensor:
        loss: Tensor = training.model(self.inputs(step, training.rank))
        return loss


class LargeFloat16(GivenGradient):
    """float16 gradients near the largest number."""

    dtype, value, lr = torch.float16, 40_000.0, 1e-4


class SmallBfloat16(GivenGradient):
    """bfloat16 parameters with steps of one unit in the last place."""

    steps = 8
    dtype, value, lr = torch.bfloat16, 1.0, 2.0**-8


class ChannelsLast(Case):
    """`channels_last` convolutions."""

    @override
    def model(self) -> Module:
        model: Module = seeded(nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    @override
    def inputs(self, step: int, rank: int) -> Tensor:
        images = batch((2, 3, 5, 5), 1000 * rank + step)
        return images.contiguous(memory_format=torch.channels_last)

    @override
    def finish(self, training: Training) -> None:
        training.note("strides", [each.stride() for each in training.module.parameters()])


# -- buffers --------------------------------------------------------------------------------------


class BatchNorm(Case):
    """BatchNorm."""

    @override
    def model(self) -> Module:
        return seeded(Normalized())


class OwnStateDict(Case):
    """BatchNorm in a model with its own `state_dict()`."""

    @override
    def model(self) -> Module:
        return seeded(Renamed())


class BuffersOfHooks(Case):
    """Buffers that a step post-hook writes."""

    @override
    def model(self) -> Module:
        return Counting()

    @override
    def attach(self, training: Training, optimizer: Optimizer) -> None:
        assert isinstance(training.module, Counting)
        optimizer.register_step_post_hook(training.module.count)


class AveragedBuffers(BatchNorm):
    """Moving average of parameters and buffers in a step post-hook, with BatchNorm."""

    @override
    def attach(self, training: Training, optimizer: Optimizer) -> None:
        average = torch.optim.swa_utils.AveragedModel(
            training.module,
            multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5),
            use_buffers=True,
        )
        training.extra["average"] = average.module
        optimizer.register_step_post_hook(lambda *_: average.update_parameters(training.module))

    @override
    def finish(self, training: Training) -> None:
        training.note("average", training.extra["average"].state_dict())


class BuffersOfTwoNames(Case):
    """A module under two names, with buffers that are not persistent."""

    @override
    def model(self) -> Module:
        return seeded(Cached())


class InfiniteMask(Case):
    """A persistent buffer with -inf."""

    @override
    def model(self) -> Module:
        return seeded(Masked())

    @override
    def inputs(self, step: int, rank: int) -> Tensor:
        return batch((3, 3), 1000 * rank + step)


# -- mixed precision and infinities ---------------------------------------------------------------


class InfinityTaken(Case):
    """A gradient with infinity, `refuse_nan: false`."""

    @override
    def loss(self, training: Training, step: int) -> Tensor:
        loss = super().loss(training, step)
        return loss * float("inf") if step == 2 else loss


class InfinityRefused(InfinityTaken):
    """A gradient with infinity in each member, `refuse_nan: true`."""

    options: ClassVar[Mapping[str, Any]] = {"refuse_nan": True}
    warns: ClassVar[str | None] = r"(?i)refus|not finite"

    @override
    def plain_step(self, training: Training, optimizer: Optimizer) -> None:
        if all(each.grad is None or each.grad.isfinite().all() for each in training.parameters()):
            super().plain_step(training, optimizer)


class InfinityOfOneRefused(InfinityRefused):
    """A gradient with infinity in one of several members, `refuse_nan: true`."""

    warns: ClassVar[str | None] = None  # a member alone has none

    @override
    def loss(self, training: Training, step: int) -> Tensor:
        odd = training.rank % 2 == 1
        return super().loss(training, step) if odd else Case.loss(self, training, step)


class NanInBuffer(BatchNorm):
    """A buffer with NaN, `refuse_nan: true`."""

    options: ClassVar[Mapping[str, Any]] = {"refuse_nan": True}
    warns = InfinityRefused.warns

    @override
    def before_step(self, training: Training, step: int) -> None:
        if step == 2:
            mean = training.module.get_buffer("norm.running_mean")
            training.extra["mean"] = mean.clone()
            mean[0] = float("nan")

    @override
    def plain_step(self, training: Training, optimizer: Optimizer) -> None:
        if not training.module.get_buffer("norm.running_mean").isnan().any():
            super().plain_step(training, optimizer)

    @override
    def after_step(self, training: Training, step: int) -> None:
        if step == 2:
            training.module.get_buffer("norm.running_mean").copy_(training.extra["mean"])


class ScaledGradients(Case):
    """`GradScaler` with an infinity in one step, `refuse_nan: true`."""

    options: ClassVar[Mapping[str, Any]] = {"refuse_nan": True}
    warns: ClassVar[str | None] = InfinityRefused.warns

    @override
    def prepare(self, training: Training) -> None:
        training.extra["scaler"] = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=2)
        # A member without the optimizer has one that is for the scaler alone.
        throw_away = torch.optim.SGD(training.module.parameters(), lr=0.0)
        training.extra["optimizer"] = training.optimizer or throw_away

    @override
    def backward(self, training: Training, step: int) -> None:
        loss = self.loss(training, step)
        training.losses.append(loss.detach().clone())
        training.extra["scaler"].scale(loss * (float("inf") if step == 1 else 1)).backward()

    @override
    def before_step(self, training: Training, step: int) -> None:
        training.extra["scaler"].unscale_(training.extra["optimizer"])

    @override
    def plain_step(self, training: Training, optimizer: Optimizer) -> None:
        training.extra["scaler"].step(optimizer)

    @override
    def after_step(self, training: Training, step: int) -> None:
        training.extra["scaler"].update()
        training.losses.append(torch.tensor(training.extra["scaler"].get_scale()))


class Autocast(Case):
    """`autocast` to bfloat16."""

    tolerance: ClassVar[Tolerance | None] = (1e-3, 1e-3)

    @override
    def loss(self, training: Training, step: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output = training.model(self.inputs(step, training.rank))
        loss: Tensor = (output.float() - 1).square().mean()
        return loss


# -- programs -------------------------------------------------------------------------------------


class PulledCopy(Case):
    """A copy of the model for evaluation, filled by `pull()`."""

    @override
    def prepare(self, training: Training) -> None:
        training.extra["copy"] = perceptron().requires_grad_(False)

    @override
    def after_step(self, training: Training, step: int) -> None:
        newer = training.pull(training.extra["copy"])
        training.losses.append(torch.tensor(float(newer)))
        self._evaluate(training)

    @override
    def after_stop(self, training: Training) -> None:
        training.pull(training.extra["copy"])
        self._evaluate(training)
        training.note("copy", [*training.extra["copy"].parameters()])

    def _evaluate(self, training: Training) -> None:
        output = training.extra["copy"](self.inputs(0, 0))
        training.losses.append((output - 1).square().mean())


class Adapter(PulledCopy):
    """An adapter on a frozen model, with a copy for evaluation that begins as another model."""

    @override
    def model(self) -> Module:
        return Adapted()

    @override
    def prepare(self, training: Training) -> None:
        training.extra["copy"] = seeded(Adapted(), 1)


class PushAlone(Case):
    """`push()` without `pull()`."""

    pushes = True


class Compiled(Case):
    """`torch.compile`."""

    @override
    def model(self) -> Module:
        model: Module = torch.compile(perceptron(), backend="eager")  # type: ignore[assignment]
        return model


class Resumed(StepSchedule):
    """Saved, rebuilt, loaded and continued."""

    steps = 6
    resume_at: ClassVar[int | None] = 4

    @override
    def optimizer(self, training: Training) -> Optimizer:
        return torch.optim.Adam(training.parameters(), lr=0.05)


def every() -> list[Case]:
    """Return an instance of each case, in the order of the documentation."""
    return [each() for each in _CASES]


_CASES: tuple[Callable[[], Case], ...] = (
    Sgd,
    Momentum,
    Adam,
    AdamW,
    ParameterGroups,
    Closure,
    ClipByNorm,
    ClipByValue,
    MovingAverage,
    OwnSteps,
    KeptGradient,
    Accumulation,
    LooseParameter,
    StepSchedule,
    CosineSchedule,
    PlateauByHand,
    PlateauGiven,
    FailingSchedule,
    TiedWeights,
    Frozen,
    Unfrozen,
    FrozenLater,
    ParameterAdded,
    ParameterWithoutGradient,
    UnusedHead,
    ZeroFirstGradient,
    SparseGradients,
    SparseAdam,
    Float16,
    Bfloat16,
    Float64,
    ComplexParameters,
    LargeFloat16,
    SmallBfloat16,
    ChannelsLast,
    BatchNorm,
    OwnStateDict,
    BuffersOfHooks,
    AveragedBuffers,
    BuffersOfTwoNames,
    InfiniteMask,
    InfinityTaken,
    InfinityRefused,
    InfinityOfOneRefused,
    NanInBuffer,
    ScaledGradients,
    Autocast,
    PulledCopy,
    Adapter,
    PushAlone,
    Compiled,
    Resumed,
)
