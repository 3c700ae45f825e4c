"""What every reducer makes of unusual models, alone and with another member."""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
import torch
from reducer_models import begun
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.prune import l1_unstructured
from typing_extensions import override

import pparallel
from pparallel.builder import Runtime

REDUCERS: dict[str, dict[str, Any]] = {
    "local": {"backend": "local"},
    "grad_server": {"backend": "grad_server", "max_staleness": 0, "dedicated": False},
    "all_reduce": {"backend": "all_reduce"},
    "overlap": {"backend": "all_reduce", "overlap": True},
    "straight": {"backend": "all_reduce", "collective": {"backend": "shm"}},
    "diloco": {"backend": "diloco", "inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0},
    "model_server": {"backend": "model_server"},
}
every_reducer = pytest.mark.parametrize("reducer", REDUCERS.values(), ids=REDUCERS)
alone_and_with_another = pytest.mark.parametrize("members", [1, 2])
_SCRIPTING = threading.Lock()  # the parser of Python 3.11 now and then fails in several threads


def launch(members: int, reducer: dict[str, Any], target: Callable[..., Any], *args: Any) -> Any:
    return pparallel.launch({"members": members, "reducer": reducer}, target, args)


def train(rt: Runtime, make: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Train what *make* returns on two batches of ones, and return its state."""
    model = begun(rt, make(), lr=0.125)
    for _ in range(2):
        model(torch.ones(4, 1)).sum().backward()
        rt.reducer.step(model)
    rt.reducer.stop()
    return model.state_dict()


# -- modules --------------------------------------------------------------------------------------


class Wrapping(nn.Module):
    """Has a child of the name under which torch.compile keeps the module that it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod = nn.Linear(1, 1)
        self.last = nn.Linear(1, 1)
        for each in self.parameters():
            nn.init.ones_(each)

    @override
    def forward(self, batch: Tensor) -> Tensor:
        hidden: Tensor = self._orig_mod(batch)
        output: Tensor = self.last(hidden)
        return output


def train_wrapping(rt: Runtime) -> dict[str, Tensor]:
    """Members begin with other parameters."""
    make = Wrapping()
    for each in make.parameters():
        nn.init.constant_(each, 1 + rt.rank)
    return train(rt, lambda: make)


@every_reducer
def test_a_child_called_as_in_compiled_modules_is_trained_with_the_others(
    reducer: dict[str, Any],
) -> None:
    first, second = launch(2, reducer, train_wrapping)
    assert all(value.item() != 1 for value in first.values())
    assert (first == second) is (reducer["backend"] != "local")


def scripted() -> nn.Module:
    with _SCRIPTING:
        module: nn.Module = torch.jit.script(Wrapping())
        return module


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@alone_and_with_another
@every_reducer
def test_a_scripted_module_is_trained_as_the_module_that_it_is_made_of(
    reducer: dict[str, Any], members: int
) -> None:
    found = launch(members, reducer, train, scripted)
    if reducer["backend"] == "model_server" and members > 1:  # in which order they step is open
        assert [state["last.bias"].item() for state in found] == [1 - 4 * 0.5] * 2
        return
    expected = launch(1, REDUCERS["local"], train, Wrapping)[0]
    assert found == [expected] * members


def pull_after_changes(rt: Runtime, of_others: bool) -> list[str]:
    model = begun(rt, nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
    pulled = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)) if of_others else model
    rt.reducer.pull(pulled)
    rt.reducer.stop()
    pulled[0].requires_grad_(False)  # which changes nothing that is pulled
    rt.reducer.pull(pulled)
    del pulled[1]
    said = []
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'1\.weight'") as caught:
            rt.reducer.pull(pulled)
        said.append(str(caught.value))
    return said


@every_reducer
def test_a_model_that_lost_layers_after_stop_is_not_pulled_into(reducer: dict[str, Any]) -> None:
    for members, of_others in ((1, False), (2, False), (1, True)):
        for first, second in launch(members, reducer, pull_after_changes, of_others):
            assert first == second


def give_another_name(rt: Runtime) -> bool:
    """A module that has two names is no other model, and neither is one that loses the second."""
    model = begun(rt, nn.Sequential(nn.Linear(1, 1)))
    for named in (True, False):
        if named:
            model.add_module("same", model[0])
        else:
            del model.same
        model(torch.ones(4, 1)).sum().backward()
        rt.reducer.step(model)
    rt.reducer.stop()
    return True


@every_reducer
def test_a_module_may_get_a_second_name(reducer: dict[str, Any]) -> None:
    assert launch(1, reducer, give_another_name) == [True]


def start_in_inference_mode(rt: Runtime) -> dict[str, Tensor]:
    model = nn.Linear(1, 1)
    for each in model.parameters():
        nn.init.ones_(each)
    if rt.reducer.manages:
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.125))
    with torch.inference_mode():
        rt.reducer.start()
        rt.reducer.pull(model)
    for _ in range(2):
        model(torch.ones(4, 1)).sum().backward()
        rt.reducer.step(model)
    rt.reducer.stop()
    return model.state_dict()


@alone_and_with_another
@every_reducer
def test_start_and_pull_in_inference_mode_leave_a_model_that_trains(
    reducer: dict[str, Any], members: int
) -> None:
    for each in launch(members, reducer, start_in_inference_mode):
        assert each["bias"].item() < 1


def change_names(rt: Runtime, change: Callable[[nn.Module], object]) -> str:
    model = begun(rt, nn.Sequential(nn.Linear(1, 1, bias=False)))
    change(model[0])
    model(torch.ones(4, 1)).sum().backward()
    return raised_by(lambda: rt.reducer.step(model))


def prune(module: nn.Module) -> None:
    l1_unstructured(module, "weight", amount=1)


def parametrize(module: nn.Module) -> None:
    weight_norm(module)


@alone_and_with_another
@every_reducer
def test_a_parameter_that_gets_another_name_after_start_is_refused(
    reducer: dict[str, Any], members: int
) -> None:
    for told in launch(members, reducer, change_names, prune if members == 1 else parametrize):
        assert "'0.weight'" in told
        assert told.startswith(
            (
                "parameter '0.weight' was removed since start(): call stop()",
                "parameter '0.weight' became '0.weight_orig' since start(): call stop()",
                LIKE,
            )
        )


LIKE = "the model is not like the managed one"


def start_with_sparse_buffer(rt: Runtime) -> str:
    model = nn.Linear(1, 1)
    model.register_buffer("adjacency", torch.eye(3).to_sparse())
    if rt.reducer.manages:
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    return raised_by(rt.reducer.start)


@every_reducer
def test_a_sparse_buffer_is_refused_by_name(reducer: dict[str, Any]) -> None:
    (told,) = launch(1, reducer, start_with_sparse_buffer)
    copies = reducer["backend"] != "local"
    assert told.startswith("buffer 'adjacency' has the layout torch.sparse_coo" if copies else "")
    assert bool(told) is copies


def swap_other_parameter(rt: Runtime) -> str:
    model, weights = nn.Linear(1, 1), [nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([*model.parameters()], lr=0.1)
    optimizer.add_param_group({"params": [weights[0]]})
    rt.reducer.manage_model(model, optimizer)
    rt.reducer.start()
    optimizer.param_groups.pop()
    optimizer.add_param_group({"params": [weights[1]]})
    (model(torch.ones(4, 1)).sum() * weights[1]).sum().backward()
    return raised_by(lambda: rt.reducer.step(model))


@pytest.mark.parametrize("backend", ["all_reduce", "diloco", "model_server"])
def test_a_parameter_beside_the_model_that_is_swapped_after_start_is_refused(backend: str) -> None:
    for told in launch(2, {"backend": backend}, swap_other_parameter):
        assert "param_groups[1]['params'][0] is not a parameter of the model, and came" in told


# -- views -----------------------------------------------------------------------------------------


class Conjugated(nn.Module):
    """Has a parameter and a buffer that are conjugated views."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1 + 2j).conj())
        self.mean: Tensor
        self.register_buffer("mean", torch.full((2,), 2j).conj())

    @override
    def forward(self, batch: Tensor) -> Tensor:
        return (self.weight * batch.sum()).real


def train_conjugated(rt: Runtime) -> list[complex]:
    state = train(rt, Conjugated)
    return [*state["weight"].tolist(), *state["mean"].tolist()]


@alone_and_with_another
@every_reducer
def test_conjugated_views_are_trained(reducer: dict[str, Any], members: int) -> None:
    found = launch(members, reducer, train_conjugated)
    steps = 4 if reducer["backend"] == "model_server" and members == 2 else 2
    assert found == [[1 - 2j - steps * 0.125 * 4] * 3 + [-2j] * 2] * members


# -- buffers ---------------------------------------------------------------------------------------


def without_arithmetic(number: float = 1.0) -> nn.Module:
    """Return a model with buffers that torch cannot add up."""
    model = nn.Linear(1, 1)
    model.register_buffer("small", torch.full((3,), number).to(torch.float8_e5m2))
    model.register_buffer("complex", torch.full((2,), number).to(torch.complex32))
    return model


def train_without_arithmetic(rt: Runtime, number: float) -> list[float]:
    state = train(rt, lambda: without_arithmetic(number * (1 + rt.rank)))
    return state["small"].float().tolist() + state["complex"].to(torch.complex64).real.tolist()


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize(("members", "refuse_nan"), [(1, True), (2, False), (2, True)])
@every_reducer
def test_buffers_without_arithmetic_are_not_averaged(
    reducer: dict[str, Any], refuse_nan: bool, members: int
) -> None:
    options = {**reducer, "refuse_nan": refuse_nan}
    found = launch(members, options, train_without_arithmetic, 1.0)
    if reducer["backend"] == "local":
        assert found == [[1.0 + rank] * 5 for rank in range(members)]
    else:
        assert found == found[:1] * members
        assert found[0] in [[1.0 + rank] * 5 for rank in range(members)]


def push_nan(rt: Runtime) -> bool:
    model = begun(rt, without_arithmetic(math.nan))
    model(torch.ones(4, 1)).sum().backward()
    accepted = rt.reducer.push(model)
    rt.reducer.stop()
    return accepted


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@every_reducer
def test_a_float8_buffer_with_nan_is_refused(reducer: dict[str, Any]) -> None:
    assert launch(1, {**reducer, "refuse_nan": True}, push_nan) == [False]


def expanded() -> nn.Module:
    model = nn.Linear(1, 1)
    model.register_buffer("mask", torch.ones(1).expand(5))
    return model


def raised_by(call: Callable[[], object]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def pull_into_expanded(rt: Runtime) -> str:
    begun(rt, numbers_and_mask())
    error = raised_by(lambda: rt.reducer.pull(expanded()))
    rt.reducer.stop()
    return error


def numbers_and_mask() -> nn.Module:
    model = nn.Linear(1, 1)
    model.register_buffer("mask", torch.ones(5))
    return model


def replace_by_expanded(rt: Runtime) -> str:
    model = begun(rt, numbers_and_mask())
    model.mask = torch.ones(1).expand(5)
    model(torch.ones(4, 1)).sum().backward()
    error = raised_by(lambda: rt.reducer.step(model))
    model.mask = torch.ones(5)
    rt.reducer.stop()
    return error


def frozen_and_expanded() -> nn.Module:
    model = nn.Linear(1, 1)
    model.scale = nn.Parameter(torch.ones(1).expand(5), requires_grad=False)
    return model


@pytest.mark.parametrize(("make", "members"), [(expanded, 2), (frozen_and_expanded, 1)])
@every_reducer
def test_a_tensor_whose_elements_share_memory_is_refused_by_start(
    reducer: dict[str, Any], make: Callable[[], nn.Module], members: int
) -> None:
    if reducer["backend"] == "local":  # nothing is copied into it
        assert launch(members, reducer, train, make)
        return
    what = "buffer 'mask'" if make is expanded else "parameter 'scale'"
    with pytest.raises(ValueError, match=rf"elements of {what} share memory.*\.clone\(\)"):
        launch(members, reducer, begun, make())


@every_reducer
@pytest.mark.parametrize("target", [pull_into_expanded, replace_by_expanded])
def test_a_buffer_whose_elements_share_memory_is_refused_later(
    reducer: dict[str, Any], target: Callable[[Runtime], str]
) -> None:
    (told,) = launch(1, reducer, target)
    taken = reducer["backend"] == "local" and target is replace_by_expanded
    expected = "" if taken else "elements of buffer 'mask' share memory"
    assert told.startswith(expected)
    assert bool(told) is bool(expected)


# -- gradients -------------------------------------------------------------------------------------


class Seeing(torch.optim.SGD):
    """Notes the dtypes of gradients, instead of stepping on them."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, lr=0.125)
        self.seen = list[torch.dtype]()

    @override
    def step(self, closure: Any = None) -> Any:
        self.seen += [each.grad.dtype for each in self.param_groups[0]["params"]]


def step_on_wide_gradients(rt: Runtime) -> tuple[str, list[torch.dtype], bool]:
    """The gradient of the last member is of more precision than its parameter."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    optimizer = Seeing(model.parameters())
    begun(rt, model, optimizer)
    wide = rt.rank == rt.world_size - 1
    model.weight.grad_dtype = None
    model.weight.grad = torch.ones(1, 1, dtype=torch.float32 if wide else torch.bfloat16)
    error = raised_by(lambda: rt.reducer.push(model))
    kept = model.weight.grad is not None
    rt.reducer.stop()
    return error, optimizer.seen, kept


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="torch has no grad_dtype")
@alone_and_with_another
@every_reducer
def test_gradients_of_another_dtype_are_handed_on_or_refused(
    reducer: dict[str, Any], members: int
) -> None:
    *_, (error, seen, kept) = found = launch(members, reducer, step_on_wide_gradients)
    if reducer["backend"] in ("local", "diloco", "model_server") or (
        reducer["backend"] == "all_reduce" and members == 1
    ):
        assert (error, seen, kept) == ("", [torch.float32], False)
        return
    assert re.match("the gradient of 'weight' is of dtype .*float32.*bfloat16.*grad_dtype", error)
    assert kept
    if reducer["backend"] == "all_reduce":
        assert found[0][0].startswith("the gradient of 'weight' of member 'member-1' is not of")
        assert found[0][1:] == ([], True)


# -- errors in a step ------------------------------------------------------------------------------


class ByHand(torch.optim.Optimizer):
    """Plain descent that writes parameters in one of several ways, and fails once in the middle."""

    def __init__(self, parameters: Iterable[Tensor], way: str, fails_in: int) -> None:
        super().__init__(parameters, {})
        self._way, self._fails_in = way, fails_in
        self._steps = itertools.count()  # no reducer takes it back
        if way == "flat":
            named = self.param_groups[0]["params"]
            self._flat = torch.cat([each.detach().flatten() for each in named])
            parts = self._flat.split([each.numel() for each in named])
            for each, part in zip(named, parts, strict=True):
                each.data = part.view_as(each)

    @override
    def step(self, closure: Any = None) -> Any:
        fails = next(self._steps) == self._fails_in
        for place, each in enumerate(self.param_groups[0]["params"]):
            if place and fails:
                raise OSError("full")
            if self._way == "in place":
                with torch.no_grad():
                    each.sub_(each.grad)
            elif self._way == "data":
                each.data.sub_(each.grad)
            elif self._way == "replaced":
                each.data = each.data - each.grad
            else:
                self._flat[place] -= each.grad.item()


def repeat_what_was_not_taken(rt: Runtime, way: str, fails_in: int) -> Any:
    model = nn.Linear(1, 1)
    for each in model.parameters():
        nn.init.zeros_(each)
    begun(rt, model, ByHand(model.parameters(), way, fails_in))
    errors = 0
    for _ in range(1 + fails_in):
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        try:
            rt.reducer.step(model)
        except OSError:
            errors += 1
            if model.weight.grad is not None:
                rt.reducer.step(model)
    with suppress(OSError):  # grad_server raises it here too
        rt.reducer.stop()
    return model.weight.item(), model.bias.item(), errors, rt.reducer.counters()[:2]


@every_reducer
def test_a_step_that_failed_half_way_is_not_made_twice_however_parameters_are_written(
    reducer: dict[str, Any],
) -> None:
    undone = reducer["backend"] == "model_server"  # and repeated as a whole
    for way in ("in place", "data", "replaced", "flat"):
        for fails_in in (0, 1):
            (found,) = launch(1, reducer, repeat_what_was_not_taken, way, fails_in)
            steps = 1 + fails_in
            last = -steps if undone else -fails_in
            assert found == (-steps, last, 1, (steps, steps)), (way, fails_in)
