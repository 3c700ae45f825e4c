"""Broken reducers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from typing_extensions import override

import pparallel_reducers
from broken.harness import Backends, rejected_by
from pparallel.plugin import Backend, hookimpl
from pparallel.testing import ReducerSuite
from pparallel_reducers import GradServerReducerConfig
from pparallel_reducers.grad_server.reducer import GradServerReducer
from pparallel_reducers.gradients import clear

if TYPE_CHECKING:
    from torch.nn import Module

    from pparallel_reducers.grad_server.sums import Sum

servers = Backends(GradServerReducerConfig, pparallel_reducers)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return servers.records


class DropsOneInAHundred(GradServerReducer):
    @override
    def open(self) -> None:
        super().open()
        if self._roles.primary is not None:
            level = self._roles.primary.level
            step, batches = level._hand_on, itertools.count(1)

            def reduce(batch: Sum) -> None:
                if next(batches) % 100:
                    step(batch)

            level._hand_on = reduce


@rejected_by("test_every_gradient_is_reduced_once", "test_each_gradient_weighs_alike")
class TestDropsOneInAHundred(ReducerSuite):
    config = servers.config(DropsOneInAHundred)


class TakesTheMeanOfMeans(GradServerReducer):
    """Secondaries send means, and the primary takes the mean of them, however many each has."""

    @override
    def open(self) -> None:
        super().open()
        if self._roles.primary is not None:
            level = self._roles.primary.level
            take = level._take

            def take_as_one(message: Sum) -> None:
                for (flat,) in message.terms:
                    flat.count = 1
                take(message)

            level._take = take_as_one  # type: ignore[method-assign]


@rejected_by("test_each_gradient_weighs_alike")
class TestTakesTheMeanOfMeans(ReducerSuite):
    config = servers.config(
        TakesTheMeanOfMeans, secondaries=("member-1", "member-2"), reduce_batch_size=10
    )


class ClearsBeforeAccepting(GradServerReducer):
    @override
    def push(self, model: Module) -> bool:
        try:
            return super().push(model)
        finally:
            clear(model.parameters())


@rejected_by("test_a_parameter_without_gradient_is_named", "test_another_model_is_refused")
class TestClearsBeforeAccepting(ReducerSuite):
    config = servers.config(ClearsBeforeAccepting)


class LeavesModelsAsTheyAre(GradServerReducer):
    """Only the managed model has the final parameters."""

    @override
    def _pull_last(self) -> None:
        if self.manages:
            super()._pull_last()


@rejected_by("test_stop_leaves_one_model")
class TestLeavesModelsAsTheyAre(ReducerSuite):
    config = servers.config(LeavesModelsAsTheyAre, reduce_batch_size=5)
