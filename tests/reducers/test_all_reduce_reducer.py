"""The reducer ``all_reduce``, among threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import all_reduce_programs as programs
import preloads
import pytest
import torch
from joined_batch import check_alike
from reducer_models import Odd, begun, check_a_step, numbers, values
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import Counters, ReducerConfig
from pparallel.runtime.events import Reduced
from pparallel.testing import ReducerSuite
from pparallel.testing.reducer.together import TogetherTests
from pparallel_process import ProcessLauncherConfig
from pparallel_reducers import AllReduceReducerConfig
from pparallel_shm import ShmCollectiveConfig

if TYPE_CHECKING:
    from pparallel.builder import Runtime

ALL_REDUCES = {
    "default": AllReduceReducerConfig(),
    "small buckets": AllReduceReducerConfig(bucket=40, broadcast_buffers=True),
    "overlap": AllReduceReducerConfig(bucket=40, overlap=True, refuse_nan=True),
    "shm": AllReduceReducerConfig(collective=ShmCollectiveConfig()),
}


class TestAllReduceReducer(ReducerSuite):
    @pytest.fixture(params=["default", "overlap"])
    @override
    def config(self, request: pytest.FixtureRequest) -> ReducerConfig:
        return ALL_REDUCES[request.param]


class TestAllReduceReducerTogether(TogetherTests):
    @pytest.fixture(params=["small buckets", "shm"])
    @override
    def config(self, request: pytest.FixtureRequest) -> ReducerConfig:
        return ALL_REDUCES[request.param]


class TestAllReduceReducerAmongProcesses(TogetherTests):
    """Over ``shm``; over ``gloo`` it is compared with DistributedDataParallel."""

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return ALL_REDUCES["shm"]

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


MODES: dict[str, dict[str, Any]] = {
    "flat": {"bucket": 600},
    "straight": {"bucket": 600, "collective": {"backend": "shm"}},
    "overlap": {"bucket": 600, "overlap": True},
}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def launch(members: Any, target: Callable[..., Any], *args: Any, **reducer: Any) -> list[Any]:
    raw = {"members": members, "reducer": {"backend": "all_reduce", **reducer}}
    return pparallel.launch(raw, target, args)


# -- what a step is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "mode"), [(2, "flat"), (3, "straight"), (3, "overlap"), (4, "flat")]
)
def test_it_is_training_on_the_joined_batch(members: int, mode: str) -> None:
    results = launch(members, programs.train, 10, **MODES[mode])
    nbytes = sum(each.nbytes for each in results[0][0])
    check_alike([trained for trained, _ in results], programs.trained_alone(members, 10))
    for rank, (_, counters) in enumerate(results):
        around = 0 if rank else 2 * nbytes  # what all begin and end with comes from the first
        assert counters == Counters(pushed=10, reduced=10, sent_bytes=10 * nbytes + around)


@modes
def test_the_sum(mode: dict[str, Any]) -> None:
    results = launch(2, programs.train, 10, reduce_method="sum", **mode)
    check_alike([each for each, _ in results], programs.trained_alone(2, 10, weight=2.0))


def add_up(rt: Runtime) -> list[float]:
    model = numbers()
    begun(rt, model)
    for _ in range(2):
        with rt.reducer.accumulate():  # type: ignore[attr-defined]
            (model.weight.sum() * (rt.rank + 1)).backward()
            (model.weight.sum() * 10).backward()
        (model.weight.sum() * 100).backward()
        rt.reducer.step(model)
    rt.reducer.stop()
    assert rt.reducer.counters()[:2] == (2, 2)
    return values(model)


@modes
def test_several_passes_make_one_step(mode: dict[str, Any]) -> None:
    assert launch(3, add_up, **mode) == [[-2 * 112.0] * 3] * 3


def push_odd(rt: Runtime) -> dict[str, torch.Tensor]:
    model = Odd()
    model.frozen.data += rt.rank
    begun(rt, model)
    model.pass_over(rt.rank)
    model.count += rt.rank
    assert rt.reducer.push(model)
    between = model.mean.clone()
    rt.reducer.stop()
    return {**model.state(), "between": between}


@modes
@pytest.mark.parametrize("broadcast", [False, True])
def test_every_dtype_and_shape(broadcast: bool, mode: dict[str, Any]) -> None:
    results = launch(3, push_odd, **{**mode, "bucket": 12}, broadcast_buffers=broadcast)
    for rank, state in enumerate(results):
        assert state["between"].tolist() == [0 if broadcast else rank] * 2
        check_a_step(state, rank, mean=0 if broadcast else 1)


def look_up(rt: Runtime) -> list[float]:
    model = nn.Embedding(4, 1, sparse=True)
    nn.init.zeros_(model.weight)
    begun(rt, model)
    model(torch.tensor([rt.rank, 3])).sum().backward()
    rt.reducer.step(model)
    rt.reducer.stop()
    return values(model)


@modes
def test_sparse_gradients_become_dense(mode: dict[str, Any]) -> None:
    assert launch(2, look_up, **mode) == [[-0.5, -0.5, 0.0, -1.0]] * 2


# -- members that have fewer batches --------------------------------------------------------------


def train_unequally(rt: Runtime, counts: list[int]) -> Any:
    model, versions = numbers(), list[int]()
    rt.events.subscribe(lambda event: versions.append(event.version), Reduced)  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rt.reducer.manage_model(model, optimizer, scheduler)
    rt.reducer.start()
    for _ in range(counts[rt.rank]):
        programs.step_on(rt, model, 2.0**rt.rank)
    if counts[rt.rank]:  # a gradient that is not handed in
        model.weight.sum().backward()
    rt.reducer.stop()
    assert versions == list(range(1, max(counts) + 1)), "not every step is told of everywhere"
    moment = optimizer.state[model.weight]["momentum_buffer"].flatten().tolist()
    return values(model), moment, scheduler.get_last_lr(), rt.reducer.counters()[:5]


@modes
@pytest.mark.parametrize("counts", [[1, 3, 2], [0, 0, 2], [4, 1, 1]])
def test_who_stops_makes_the_steps_of_the_others(counts: list[int], mode: dict[str, Any]) -> None:
    reference = numbers()
    optimizer = torch.optim.SGD(reference.parameters(), lr=1.0, momentum=0.5)
    for step in range(max(counts)):
        shares = [2.0**rank for rank, count in enumerate(counts) if count > step]
        mean = sum(shares) / len(shares)
        reference.weight.grad = torch.full((3, 1), mean, dtype=torch.float64)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
    results = launch(3, train_unequally, counts, **mode)
    assert [each[:3] for each in results] == [results[0][:3]] * 3
    assert results[0][0] == pytest.approx(values(reference))
    assert results[0][2] == [0.5 ** max(counts)]
    assert [counters for *_, counters in results] == [(each, each, 0, 0, 0) for each in counts]


def stop_early_in_half_precision(rt: Runtime) -> list[float]:
    model = numbers().half()
    begun(rt, model, torch.optim.SGD(model.parameters(), lr=2.0**-10))
    for _ in range(2 if rt.rank else 1):
        model.weight.grad = torch.full_like(model.weight, 40_000.0)
        rt.reducer.step(model)
    rt.reducer.stop()
    return values(model)


@modes
def test_means_of_the_members_that_are_left_do_not_overflow(mode: dict[str, Any]) -> None:
    assert launch(3, stop_early_in_half_precision, **mode) == [[-78.125] * 3] * 3


# -- gradients that are somebody else's too -------------------------------------------------------


class Two(nn.Module):
    """Two parameters, whose gradients the program makes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(4))
        self.b = nn.Parameter(torch.zeros(4))


def hand_in_what_is_held(rt: Runtime) -> Any:
    model, found = Two(), list[tuple[float, float]]()
    begun(rt, model, torch.optim.SGD(model.parameters(), lr=1.0))
    held, flat = torch.full((4,), rt.rank + 1.0), torch.full((8,), rt.rank + 1.0)
    for kind in ("held", "one of two", "views", "expanded", "a parameter"):
        for _ in range(2):
            match kind:
                case "held":
                    model.a.grad, model.b.grad = held, torch.zeros(4)
                case "one of two":
                    model.a.grad = model.b.grad = torch.full((4,), rt.rank + 1.0)
                case "views":
                    model.a.grad, model.b.grad = flat[:4], flat[4:]
                case "expanded":
                    model.a.grad = torch.tensor(rt.rank + 1.0).expand(4)
                    model.b.grad = torch.tensor([rt.rank + 1.0]).expand(4)
                case _:
                    model.a.grad, model.b.grad = model.a.detach(), model.b.detach()
            rt.reducer.step(model)
        found.append((model.a[0].item(), model.b[0].item()))
    assert held.unique().item() == flat.unique().item() == rt.rank + 1.0
    rt.reducer.stop()
    return found


@modes
@pytest.mark.parametrize("bucket", [8, 600])
def test_gradients_that_the_program_holds(mode: dict[str, Any], bucket: int) -> None:
    expected = [(-6.0, 0.0), (-12.0, -6.0), (-18.0, -12.0), (-24.0, -18.0), (-24.0, -18.0)]
    results = launch(2, hand_in_what_is_held, reduce_method="sum", **{**mode, "bucket": bucket})
    assert results == [expected] * 2


def reduce_where_they_lie(rt: Runtime) -> None:
    model, seen = numbers(), list[int]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def look(*_: object) -> None:
        assert model.weight.grad is not None
        seen.append(model.weight.grad.data_ptr())

    optimizer.register_step_pre_hook(look)
    begun(rt, model, optimizer)
    for _ in range(3):
        model.weight.sum().backward()
        look()
        rt.reducer.step(model)
    rt.reducer.stop()
    assert seen[0::2] == seen[1::2], "a gradient that nobody else holds was copied"


def test_gradients_of_a_backward_pass_are_reduced_where_they_lie() -> None:
    launch(2, reduce_where_they_lie, **MODES["straight"])


def step_beside_the_model(rt: Runtime) -> list[list[float]]:
    """Step a weight of the loss, frozen parameters and such as are not used, with decay."""
    model = numbers()
    frozen, unused, weight = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    parameters = [*model.parameters(), frozen, unused, weight]
    begun(rt, model, torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5))
    for _ in range(3):
        loss = model.weight.sum()
        if rt.rank:  # for the other member, it has no gradient
            loss = loss + weight.sum()
        loss.backward()
        rt.reducer.step(model)
        assert unused.grad is None
    rt.reducer.stop()
    return [each.tolist() for each in (frozen, unused, weight)]


@modes
def test_parameters_beside_the_model_without_gradient_are_left_alone(mode: dict[str, Any]) -> None:
    results = launch(2, step_beside_the_model, **mode)
    frozen, unused, weight = results[0]
    assert results[1] == results[0]
    assert frozen == unused == [1.0, 1.0], "decay moved what has a gradient in no member"
    assert weight[0] < 1.0 - 3 * 0.05


def train_and_pull(rt: Runtime) -> list[list[float]]:
    model, other = numbers(), numbers(7.0)
    begun(rt, model)
    pulled = [rt.reducer.pull(other)]
    for _ in range(rt.rank):
        programs.step_on(rt, model, 1.0)
        pulled += [rt.reducer.pull(other), rt.reducer.pull(other), rt.reducer.pull(model)]
    assert pulled == [True] + [True, False, False] * rt.rank
    rt.reducer.stop()
    return [values(model), values(other)]


def test_another_model_is_pulled_into() -> None:
    assert launch(3, train_and_pull) == [[[-2.0] * 3] * 2] * 3


# -- where gradients travel -----------------------------------------------------------------------


def talk_meanwhile(rt: Runtime) -> list[float]:
    """Use the collective that the reducer stands on, in another order in each member."""
    model, group = numbers(), rt.collective
    begun(rt, model)
    mine, theirs = torch.tensor([float(rt.rank)]), torch.zeros(1)
    for _ in range(3):
        sent = group.isend(mine, 1 - rt.rank)
        programs.step_on(rt, model, 1.0)
        group.recv(theirs, 1 - rt.rank)
        sent.wait()
    group.all_reduce(mine)
    rt.reducer.stop()
    assert (mine.item(), theirs.item()) == (1.0, 1.0 - rt.rank)
    return values(model)


@pytest.mark.parametrize("own", [None, {"backend": "local"}])
def test_the_collective_may_be_used_meanwhile(own: Any) -> None:
    assert launch(2, talk_meanwhile, collective=own) == [[-3.0] * 3] * 2


def average_views(rt: Runtime) -> list[float]:
    """Stop with a buffer that is a part of another, and is another in each member."""
    model = numbers()
    whole = torch.zeros(4)
    model.register_buffer("whole", whole)
    model.register_buffer("part", whole[1:3])
    begun(rt, model)
    programs.step_on(rt, model, 1.0)
    whole.fill_(float(rt.rank))
    rt.reducer.stop()
    return [*whole.tolist(), *model.get_buffer("part").tolist()]


@pytest.mark.parametrize("collective", ["local", "shm"])
def test_buffers_that_share_memory_are_averaged(collective: str) -> None:
    found = launch(2, average_views, collective={"backend": collective})
    assert found == [[0.5] * 6] * 2
