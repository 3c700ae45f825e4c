"""Broken reducers: what they do to training, one fault each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

import pparallel_reducers
from broken.harness import Backends, rejected_by
from pparallel.plugin import Backend, hookimpl
from pparallel.testing import TrainingSuite
from pparallel.testing.training import Difference, Verdict
from pparallel_reducers import (
    AllReduceReducerConfig,
    DilocoReducerConfig,
    LocalReducerConfig,
)
from pparallel_reducers.all_reduce.reducer import AllReduceReducer
from pparallel_reducers.diloco.reducer import DilocoReducer
from pparallel_reducers.local import LocalReducer

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


lonely = Backends(LocalReducerConfig, pparallel_reducers)
together = Backends(AllReduceReducerConfig, pparallel_reducers)
rounds = Backends(DilocoReducerConfig, pparallel_reducers)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return [*lonely.records, *together.records, *rounds.records]


class ReusesMemory(LocalReducer):
    """Writes to the gradients once they were stepped on, which a hook may have kept."""

    @override
    def push(self, model: Module) -> bool:
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        accepted = super().push(model)
        for each in gradients:
            each.zero_()
        return accepted


@rejected_by("test_alone")
class TestReusesMemory(TrainingSuite):
    alone_cases: ClassVar[Collection[str] | None] = ("kept_gradient",)
    config = lonely.config(ReusesMemory)


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


@rejected_by("test_together")
class TestAddsBeforeItDivides(TrainingSuite):
    together_cases: ClassVar[Collection[str] | None] = ("large_float16",)
    config = together.config(AddsBeforeItDivides, reduce_method="sum")


class KnowsNoRefusal(LocalReducer):
    """Has the option ``refuse_nan``, and steps on infinity all the same."""

    @override
    def push(self, model: Module) -> bool:
        self._config = self._config.model_copy(update={"refuse_nan": False})
        return super().push(model)


@rejected_by("test_alone")
class TestKnowsNoRefusal(TrainingSuite):
    alone_cases: ClassVar[Collection[str] | None] = ("infinity_refused",)
    config = lonely.config(KnowsNoRefusal)


class ForgetsMomentum(DilocoReducer):
    """Loads nothing of what it has saved."""

    @override
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        pass


@rejected_by("test_together")
class TestForgetsMomentum(TrainingSuite):
    together_cases: ClassVar[Collection[str] | None] = ("resumed",)
    verdicts: ClassVar[Mapping[str, Verdict]] = {"resumed": Difference("outer steps")}
    config = rounds.config(ForgetsMomentum, inner_steps=2)
