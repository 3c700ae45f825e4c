"""What holds where one member has the reducer to itself."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pparallel.errors import ClosedError
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.testing.reducer.base import ReducerTests
from pparallel.testing.reducer.models import (
    averaging,
    backward,
    clipping,
    descent,
    fill,
    line,
    manage,
    parameters,
)
from pparallel.testing.suite import requires


class AloneTests(ReducerTests):
    """Tests of one member."""

    # -- steps --------------------------------------------------------------------------------

    def test_one_step_is_the_optimizers_step(self, reducer: Reducer) -> None:
        import torch

        model, reference = line(), line()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        reducer.manage_model(model, optimizer, scheduler)
        reducer.start()
        backward(model, 1)
        reducer.step(model)
        reducer.stop()
        expected = torch.optim.Adam(reference.parameters(), lr=0.1)
        backward(reference, 1)
        expected.step()
        assert parameters(model) == parameters(reference)
        assert scheduler.get_last_lr() == [0.05]
        assert all(each in optimizer.state for each in model.parameters())

    def test_stop_hands_the_optimizer_back(self, reducer: Reducer) -> None:
        model, reference = line(), line()
        optimizer = descent(model)
        reducer.manage_model(model, optimizer)
        reducer.start()
        reducer.stop()
        backward(model, 1)
        optimizer.step()
        backward(reference, 1)
        descent(reference).step()
        assert parameters(model) == parameters(reference)

    def test_gradients_are_cleared(self, reducer: Reducer) -> None:
        model = line()
        manage(reducer, model)
        reducer.start()
        backward(model, 1)
        assert reducer.push(model)
        assert all(each.grad is None for each in model.parameters())
        reducer.stop()

    def test_gradients_accumulate(self, reducer: Reducer) -> None:
        model, reference = line(), line()
        manage(reducer, model)
        reducer.start()
        for each in (model, reference):
            backward(each, 1)
            backward(each, 2)
        reducer.step(model)
        reducer.stop()
        descent(reference).step()
        assert parameters(model) == parameters(reference)

    def test_frozen_parameters_stay(self, reducer: Reducer) -> None:
        model = line()
        model[0].requires_grad_(False)
        frozen, trained = parameters(model)[:2], parameters(model)[2:]
        reducer.manage_model(model, descent(model, weight_decay=0.5))
        reducer.start()
        backward(model, 1)
        reducer.step(model)
        reducer.stop()
        assert parameters(model)[:2] == frozen
        assert parameters(model)[2:] != trained

    # -- refusals -----------------------------------------------------------------------------

    def test_a_parameter_without_gradient_is_named(self, reducer: Reducer) -> None:
        model = line()
        manage(reducer, model)
        reducer.start()
        before = parameters(model)
        with pytest.raises(ValueError, match=r"'0\.weight' has no gradient.*backward"):
            reducer.step(model)
        backward(model, 1)
        next(iter(model[1].parameters())).grad = None
        with pytest.raises(ValueError, match=r"'1\.weight' has no gradient.*requires_grad_"):
            reducer.push(model)
        assert next(iter(model.parameters())).grad is not None, "a refused push took gradients"
        reducer.stop()
        assert parameters(model) == before
        assert reducer.counters() == Counters()

    def test_another_model_is_refused(self, reducer: Reducer) -> None:
        model, other = line(), line(outputs=2)
        manage(reducer, model)
        reducer.start()
        backward(other, 1)
        with pytest.raises(ValueError, match="model"):
            reducer.push(other)
        assert all(each.grad is not None for each in other.parameters())
        backward(model, 1)
        reducer.push(model)
        reducer.stop()
        assert reducer.counters()[:5] == Counters(pushed=1, reduced=1, refused=1)[:5]

    @requires("shared")
    def test_another_model_is_not_pulled_into(self, reducer: Reducer) -> None:
        other = line(1, outputs=2)
        manage(reducer, line())
        reducer.start()
        with pytest.raises(ValueError, match=r"1\.weight"):
            reducer.pull(other)
        assert parameters(other) == parameters(line(1, outputs=2))
        reducer.stop()

    def test_a_step_that_fails_is_raised(self, reducer: Reducer) -> None:
        model = line()
        optimizer = descent(model)

        def fail(*_: object) -> None:
            message = "too steep"
            raise ArithmeticError(message)

        optimizer.register_step_pre_hook(fail)
        reducer.manage_model(model, optimizer)
        reducer.start()
        backward(model, 1)
        try:
            reducer.push(model)
        except ArithmeticError:
            assert all(each.grad is not None for each in model.parameters())
            with suppress(ArithmeticError):  # where such an error ends the run
                reducer.stop()
        else:
            with pytest.raises(ArithmeticError, match="too steep"):
                reducer.stop()
            with pytest.raises(ArithmeticError, match="too steep"):
                reducer.watch()
        assert reducer.counters().reduced == 0

    def test_a_scheduler_that_fails_is_raised_once_the_step_counts(self, reducer: Reducer) -> None:
        import torch

        model, reference = line(), line()
        optimizer, expected = descent(model), descent(reference)

        def factor(epoch: int) -> float:
            if epoch == 1:
                raise ArithmeticError("no rate is known")
            return 1.0

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        reducer.manage_model(model, optimizer, scheduler)
        reducer.start()
        backward(model, 1)
        backward(reference, 1)
        expected.step()

        def step_and_stop() -> None:
            reducer.step(model)
            reducer.stop()

        with pytest.raises(ArithmeticError, match="no rate"):
            step_and_stop()
        assert parameters(model) == parameters(reference), "the step was made once"
        assert all(each.grad is None for each in model.parameters())
        with suppress(ArithmeticError):  # where it is raised at the step and kept
            reducer.stop()
        assert reducer.counters()[:2] == (1, 1)

    def test_hooks_see_the_model(self, reducer: Reducer) -> None:
        """A hook clips the model's gradients, and another averages its parameters."""
        import torch

        model, reference = line(), line()
        optimizers = [descent(each, lr=1.0) for each in (model, reference)]
        averages = [torch.optim.swa_utils.AveragedModel(each) for each in (model, reference)]
        for each, optimizer, average in zip((model, reference), optimizers, averages, strict=True):
            optimizer.register_step_pre_hook(clipping(each, 0.01))
            optimizer.register_step_post_hook(averaging(each, average))
        reducer.manage_model(model, optimizers[0])
        for seed in (1, 2):
            reducer.start()
            backward(model, seed)
            reducer.step(model)
            reducer.stop()
            backward(reference, seed)
            optimizers[1].step()
            optimizers[1].zero_grad()
        assert parameters(model) == parameters(reference)
        assert parameters(averages[0]) == parameters(averages[1])

    @pytest.mark.parametrize("change", ["freeze", "unfreeze", "add", "replace"])
    def test_a_changed_model_is_refused(self, reducer: Reducer, change: str) -> None:
        import torch

        model = line()
        model[1].requires_grad_(False)
        manage(reducer, model)
        reducer.start()
        name = {"freeze": "0.weight", "unfreeze": "1.weight", "add": "2.weight"}.get(
            change, "0.weight"
        )
        if change == "add":
            model.append(torch.nn.Linear(1, 1))
        elif change == "replace":
            model[0].weight = torch.nn.Parameter(torch.zeros(4, 3))
        else:
            model.get_parameter(name).requires_grad_(change == "unfreeze")
        before = parameters(model)
        backward(model, 2)
        with pytest.raises(ValueError, match=rf"'{name}'.*stop\(\).*start\(\)"):
            reducer.push(model)
        assert parameters(model) == before
        assert all(each.grad is not None for each in model.parameters() if each.requires_grad)
        reducer.stop()

    # -- start and stop -----------------------------------------------------------------------

    def test_push_outside_start_and_stop(self, reducer: Reducer) -> None:
        model = line()
        manage(reducer, model)
        backward(model, 1)
        with pytest.raises(ClosedError, match="start"):
            reducer.push(model)
        reducer.start()
        reducer.stop()
        with pytest.raises(ClosedError, match="start"):
            reducer.push(model)
        assert reducer.counters().pushed == 0

    def test_pull_before_start(self, reducer: Reducer) -> None:
        model = line()
        manage(reducer, model)
        with pytest.raises(ClosedError, match="start"):
            reducer.pull(model)

    def test_start_without_a_model(self, reducer: Reducer) -> None:
        assert reducer.manages
        with pytest.raises(RuntimeError, match="manage_model"):
            reducer.start()

    def test_managing_while_it_runs(self, reducer: Reducer) -> None:
        model = line()
        manage(reducer, line(1))
        manage(reducer, model)
        reducer.start()
        with pytest.raises(RuntimeError, match="before start"):
            manage(reducer, line(2))
        backward(model, 1)
        reducer.step(model)
        reducer.stop()
        assert parameters(model) != parameters(line())

    def test_stop_twice(self, reducer: Reducer) -> None:
        reducer.stop()
        manage(reducer, line())
        reducer.start()
        reducer.stop()
        reducer.stop()
        reducer.watch()
        assert reducer.counters() == Counters()

    def test_start_again(self, reducer: Reducer) -> None:
        model, reference = line(), line()
        manage(reducer, model)
        optimizer = descent(reference)
        for seed in (1, 2):
            reducer.start()
            for each in (model, reference):
                backward(each, seed)
            reducer.step(model)
            reducer.stop()
            optimizer.step()
            optimizer.zero_grad()
        assert parameters(model) == parameters(reference)
        assert reducer.counters() == Counters(pushed=2, reduced=2)

    def test_start_takes_the_model_as_it_is(self, reducer: Reducer) -> None:
        model, reference = line(), line()
        manage(reducer, model)
        reducer.start()
        backward(model, 1)
        reducer.step(model)
        reducer.stop()
        for each in (model, reference):
            fill(each, 0.5)
            each[0].requires_grad_(False)
        reducer.start()
        for each in (model, reference):
            backward(each, 2)
        reducer.step(model)
        reducer.stop()
        descent(reference).step()
        assert parameters(model) == parameters(reference)
