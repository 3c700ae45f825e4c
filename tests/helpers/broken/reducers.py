"""Broken reducers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

import pparallel_reducers
from broken.harness import Backends, rejected_by
from pparallel.plugin import Backend, hookimpl
from pparallel.testing import ReducerSuite
from pparallel_reducers import GradServerReducerConfig, LocalReducerConfig
from pparallel_reducers.grad_server.reducer import GradServerReducer
from pparallel_reducers.gradients import clear
from pparallel_reducers.layout import state_of
from pparallel_reducers.local import LocalReducer

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from pparallel_reducers.grad_server.sums import Sum

servers = Backends(GradServerReducerConfig, pparallel_reducers)
lonely = Backends(LocalReducerConfig, pparallel_reducers)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return [*servers.records, *lonely.records]


# -- what is reduced ------------------------------------------------------------------------------


def scale(batch: Sum, factor: float) -> None:
    for flat in batch.terms[0]:
        for tensors in flat.pieces:
            for each in tensors:
                each *= factor


class ChangedPrimary(GradServerReducer):
    """Passes the primary's batches on to its optimizer; a fault overrides :meth:`reduce`."""

    _step: Callable[[Sum], None]
    _batches = 0

    @override
    def open(self) -> None:
        super().open()
        if self._roles.primary is not None:
            level = self._roles.primary.level
            self._step, level._hand_on = level._hand_on, self.reduce

    def reduce(self, batch: Sum) -> None:
        self._step(batch)


class DropsOneInAHundred(ChangedPrimary):
    @override
    def reduce(self, batch: Sum) -> None:
        self._batches += 1
        if self._batches % 100:
            self._step(batch)


@rejected_by("test_every_gradient_is_reduced_once", "test_each_gradient_weighs_alike")
class TestDropsOneInAHundred(ReducerSuite):
    config = servers.config(DropsOneInAHundred)


class CountsWhatItDrops(ChangedPrimary):
    """Says of every hundredth gradient that it was reduced with the next."""

    @override
    def reduce(self, batch: Sum) -> None:
        self._batches += 1
        if self._batches % 100:
            batch.count += self._batches % 100 == 1 and self._batches > 1
            self._step(batch)


@rejected_by("test_each_gradient_weighs_alike")
class TestCountsWhatItDrops(ReducerSuite):
    config = servers.config(CountsWhatItDrops)


class ReducesOneTwice(ChangedPrimary):
    @override
    def reduce(self, batch: Sum) -> None:
        self._batches += 1
        self._step(batch)
        if self._batches == 100:
            self._step(batch)


@rejected_by("test_every_gradient_is_reduced_once", "test_each_gradient_weighs_alike")
class TestReducesOneTwice(ReducerSuite):
    config = servers.config(ReducesOneTwice)


class SumsInsteadOfAveraging(ChangedPrimary):
    @override
    def reduce(self, batch: Sum) -> None:
        scale(batch, batch.count)
        self._step(batch)


@rejected_by("test_each_gradient_weighs_alike")
class TestSumsInsteadOfAveraging(ReducerSuite):
    config = servers.config(SumsInsteadOfAveraging, reduce_batch_size=2)


class TakesTheMeanOfMeans(ChangedPrimary):
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


class ForgetsAnIncompleteBatch(GradServerReducer):
    @override
    def open(self) -> None:
        super().open()
        for level in self._roles.levels():
            level._flush = lambda: None  # type: ignore[method-assign]


@rejected_by("test_one_step_is_the_optimizers_step", "test_every_gradient_is_reduced_once")
class TestForgetsAnIncompleteBatch(ReducerSuite):
    config = servers.config(ForgetsAnIncompleteBatch, reduce_batch_size=7)


class AcknowledgesBeforeStoring(GradServerReducer):
    """A message is stored when the next one comes: the last is gone when the reducer stops."""

    @override
    def open(self) -> None:
        super().open()
        if (level := self._roles.secondary) is not None:
            offer, kept = level.offer, list[Any]()

            def acknowledge(*message: Any) -> Future[bool]:
                for each in kept:
                    offer(*each)
                kept[:] = [message]
                acknowledged: Future[bool] = Future()
                acknowledged.set_result(True)
                return acknowledged

            level.offer = acknowledge  # type: ignore[assignment]


@rejected_by("test_one_step_is_the_optimizers_step", "test_every_gradient_is_reduced_once")
class TestAcknowledgesBeforeStoring(ReducerSuite):
    config = servers.config(AcknowledgesBeforeStoring)


# -- gradients and models -------------------------------------------------------------------------


class KeepsGradients(GradServerReducer):
    @override
    def push(self, model: Module) -> bool:
        gradients = [each.grad for each in model.parameters()]
        accepted = super().push(model)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        return accepted


@rejected_by("test_gradients_are_cleared")
class TestKeepsGradients(ReducerSuite):
    config = servers.config(KeepsGradients)


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


class TakesMissingForZero(GradServerReducer):
    @override
    def push(self, model: Module) -> bool:
        for each in model.parameters():
            if each.requires_grad and each.grad is None:
                each.grad = each.detach().clone().zero_()
        return super().push(model)


@rejected_by("test_a_parameter_without_gradient_is_named")
class TestTakesMissingForZero(ReducerSuite):
    config = servers.config(TakesMissingForZero)


class StepsWhatIsFrozen(LocalReducer):
    """Gives frozen parameters a gradient of zeros, which weight decay makes into a step."""

    @override
    def push(self, model: Module) -> bool:
        for each in model.parameters():
            if not each.requires_grad:
                each.grad = each.detach().clone().zero_()
        return super().push(model)


@rejected_by("test_frozen_parameters_stay")
class TestStepsWhatIsFrozen(ReducerSuite):
    config = lonely.config(StepsWhatIsFrozen)


class TakesAnyModel(LocalReducer):
    @override
    def push(self, model: Module) -> bool:
        if self._own.running and model is not self._own.model:
            clear(model.parameters())
            self._tally.pushed()
            return True
        return super().push(model)


@rejected_by("test_another_model_is_refused")
class TestTakesAnyModel(ReducerSuite):
    config = lonely.config(TakesAnyModel)


class PullsAnAlias(GradServerReducer):
    """Members of one process are given the same memory."""

    _known: ClassVar[dict[int, Any]] = {}

    @override
    def pull(self, model: Module) -> bool:
        board = self._boards[0]
        known = self._versions.get(model)
        found = board._server.wait(board._key, known[0] if known else None, timeout=0)
        if found is None:
            return False
        state: Any = self._known.setdefault(int(str(found[1])), found[0])
        for name, tensor in state_of(model).items():
            tensor.data = state[name]
        self._versions[model] = [int(str(found[1]))]
        return True


@rejected_by("test_what_is_pulled_is_the_members_own")
class TestPullsAnAlias(ReducerSuite):
    config = servers.config(PullsAnAlias)


class SharesOneKey(GradServerReducer):
    """All reducers of a job publish to one key."""

    @override
    def open(self) -> None:
        super().open()
        self._boards[0]._key = "parameters"


@rejected_by("test_two_reducers_do_not_mix")
class TestSharesOneKey(ReducerSuite):
    config = servers.config(SharesOneKey)


# -- start and stop -------------------------------------------------------------------------------


class LeavesModelsAsTheyAre(GradServerReducer):
    """Only the managed model has the final parameters."""

    @override
    def _pull_last(self) -> None:
        if self.manages:
            super()._pull_last()


@rejected_by("test_stop_leaves_one_model")
class TestLeavesModelsAsTheyAre(ReducerSuite):
    config = servers.config(LeavesModelsAsTheyAre, reduce_batch_size=5)


class KeepsTheOptimizer(GradServerReducer):
    """The optimizer steps copies of the parameters, also once reducing has stopped."""

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        super().manage_model(model, optimizer, lr_scheduler)
        copies = copy.deepcopy(model)
        optimizer.param_groups[0]["params"] = list(copies.parameters())


@rejected_by("test_one_step_is_the_optimizers_step", "test_stop_hands_the_optimizer_back")
class TestKeepsTheOptimizer(ReducerSuite):
    config = servers.config(KeepsTheOptimizer)


class NeverStepsTheScheduler(GradServerReducer):
    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        super().manage_model(model, optimizer)


@rejected_by("test_one_step_is_the_optimizers_step")
class TestNeverStepsTheScheduler(ReducerSuite):
    config = servers.config(NeverStepsTheScheduler)


class ManagesEverywhere(GradServerReducer):
    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        if self.manages:
            super().manage_model(model, optimizer, lr_scheduler)


@rejected_by("test_manages_where_it_says")
class TestManagesEverywhere(ReducerSuite):
    config = servers.config(ManagesEverywhere)


class TakesGradientsAtAnyTime(LocalReducer):
    @override
    def push(self, model: Module) -> bool:
        if not self._own.running:
            clear(model.parameters())
            return True
        return super().push(model)


@rejected_by("test_push_outside_start_and_stop")
class TestTakesGradientsAtAnyTime(ReducerSuite):
    config = lonely.config(TakesGradientsAtAnyTime)


class StopsOnce(GradServerReducer):
    @override
    def stop(self) -> None:
        if self._run is None:
            message = "not started"
            raise RuntimeError(message)
        super().stop()


@rejected_by("test_stop_twice")
class TestStopsOnce(ReducerSuite):
    config = servers.config(StopsOnce)


class StartsOnce(GradServerReducer):
    """A second start finds that it has been started."""

    _before = False

    @override
    def start(self) -> None:
        if not self._before:
            super().start()
        self._before = True


@rejected_by("test_start_again", "test_start_takes_the_model_as_it_is")
class TestStartsOnce(ReducerSuite):
    config = servers.config(StartsOnce)


class GoesOnWhereItStopped(GradServerReducer):
    """A second start takes the parameters of the last stop, whatever has become of the model."""

    _kept: dict[str, Any] | None = None

    @override
    def start(self) -> None:
        if self._kept is not None and self._roles.primary is not None:
            self._roles.primary.stepper.model.load_state_dict(self._kept)
        super().start()

    @override
    def stop(self) -> None:
        super().stop()
        if self._roles.primary is not None:
            state = self._roles.primary.stepper.model.state_dict()
            self._kept = {name: each.clone() for name, each in state.items()}


@rejected_by("test_start_takes_the_model_as_it_is")
class TestGoesOnWhereItStopped(ReducerSuite):
    config = servers.config(GoesOnWhereItStopped)


class LeaksAThread(GradServerReducer):
    """A thread that is to look after the queue waits for ever."""

    @override
    def start(self) -> None:
        super().start()
        threading.Thread(target=threading.Event().wait, name="idle", daemon=True).start()


@rejected_by("test_stop_twice")
class TestLeaksAThread(ReducerSuite):
    config = servers.config(LeaksAThread)


# -- what is said ---------------------------------------------------------------------------------


class SwallowsFailures(GradServerReducer):
    @override
    def stop(self) -> None:
        try:
            super().stop()
        except ArithmeticError:
            self._run = None

    @override
    def watch(self) -> None:
        pass


@rejected_by("test_a_step_that_fails_is_raised")
class TestSwallowsFailures(ReducerSuite):
    config = servers.config(SwallowsFailures)


class CountsStepsForGradients(GradServerReducer):
    @override
    def open(self) -> None:
        super().open()
        reduced = self._tally.reduced

        def count_one(_: int, behind: int, version: int) -> None:
            reduced(1, behind, version)

        self._tally.reduced = count_one  # type: ignore[assignment]


@rejected_by("test_every_gradient_is_reduced_once", "test_events_and_counters_agree")
class TestCountsStepsForGradients(ReducerSuite):
    config = servers.config(CountsStepsForGradients, reduce_batch_size=2)


class CountsWhatItRefuses(LocalReducer):
    """A push counts before it is looked at."""

    @override
    def push(self, model: Module) -> bool:
        self._tally.pushed()
        accepted = super().push(model)
        self._tally._add("pushed", -1)
        return accepted


@rejected_by("test_a_parameter_without_gradient_is_named", "test_another_model_is_refused")
class TestCountsWhatItRefuses(ReducerSuite):
    config = lonely.config(CountsWhatItRefuses)


class RefusesWithoutTelling(GradServerReducer):
    @override
    def open(self) -> None:
        super().open()

        def count(number: int, *_: object, late: bool = False) -> None:
            self._tally._add("late" if late else "refused", number)

        self._tally.refused = count  # type: ignore[assignment]


@rejected_by("test_events_and_counters_agree")
class TestRefusesWithoutTelling(ReducerSuite):
    config = servers.config(RefusesWithoutTelling)
