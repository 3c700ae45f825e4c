"""Several primaries, each of which steps a share of the parameters."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import launch
from torch import nn

from pparallel.errors import ConfigError, PeerLostError
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.testing.patience import PATIENCE
from pparallel.testing.reducer import backward, line, parameters
from pparallel_reducers import GradServerReducerConfig
from pparallel_reducers.grad_server.image import PIECE, Image
from pparallel_reducers.grad_server.shares import shares
from pparallel_reducers.layout import Layout

if TYPE_CHECKING:
    from pparallel.builder import Runtime

PRIMARIES = ("p0", "p1", "p2")
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.1),
}


class Mixed(nn.Module):
    """Parameters of many kinds, and buffers."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.a = nn.Parameter(torch.rand(5, 7, generator=random))
        self.turned = nn.Parameter(torch.rand(4, 6, generator=random).T)
        self.long = nn.Parameter(torch.rand(9, generator=random, dtype=torch.float64))
        self.empty = nn.Parameter(torch.rand(0, 3))
        self.frozen = nn.Parameter(torch.rand(3, generator=random), requires_grad=False)
        self.last = nn.Parameter(torch.rand((), generator=random))
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(2))


def give_gradients(model: nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for each in model.parameters():
        if each.requires_grad:
            each.grad = torch.rand(each.shape, generator=random).to(each.dtype) - 0.5


def state(model: nn.Module) -> dict[str, list[float]]:
    return {name: each.flatten().tolist() for name, each in model.state_dict().items()}


# -- what is stepped ------------------------------------------------------------------------------


def step_in_turns(rt: Runtime, kind: str, steps: int) -> Any:
    reducer, model = rt.reducer, Mixed(rt.rank)
    optimizer = scheduler = None
    if reducer.manages:
        optimizer = OPTIMIZERS[kind](model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        reducer.manage_model(model, optimizer, scheduler)
    for run in range(2):  # the second goes on where the first ended
        reducer.start()
        reducer.pull(model)
        for step in range(steps if reducer.trains else 0):
            give_gradients(model, run * steps + step)
            model.mean += 1
            reducer.push(model)
        reducer.stop()
    rates = None if scheduler is None else scheduler.get_last_lr()
    return state(model), rates, reducer.counters()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("secondaries", [None, ("p1",), ("w",)])
def test_they_step_as_one_would(kind: str, secondaries: tuple[str, ...] | None) -> None:
    config = GradServerReducerConfig(primaries=PRIMARIES, secondaries=secondaries)
    results = launch([*PRIMARIES, "w"], config, step_in_turns, kind, 5)
    expected = Mixed(0)
    optimizer = OPTIMIZERS[kind](expected)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for step in range(10):
        give_gradients(expected, step)
        expected.mean += 1
        optimizer.step()
        scheduler.step()
    for found, rates, counters in results:
        assert found.keys() == state(expected).keys()
        for name, values in state(expected).items():
            assert found[name] == pytest.approx(values, rel=1e-6), name
        assert rates in (None, scheduler.get_last_lr())
        assert counters[2:5] == (0, 0, 0)
    assert [counters.reduced for _, _, counters in results] == [10, 10, 10, 0]
    assert results[3][2].pushed == 10


def train(rt: Runtime, steps: int) -> tuple[list[list[float]], float, Counters]:
    reducer, model = rt.reducer, line(rt.rank)
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.05))
    reducer.start()
    reducer.pull(model)
    for step in range(steps if reducer.trains else 0):
        backward(model, step * rt.world_size + rt.rank, 1.0)
        reducer.step(model)
    reducer.stop()
    return parameters(model), float(backward(model, 0, 1.0).detach()), reducer.counters()


@pytest.mark.parametrize("dedicated", [None, False])
def test_many_members_train_one_model(dedicated: bool | None) -> None:
    config = GradServerReducerConfig(
        primaries=("a", "c"), secondaries=("b", "c"), reduce_batch_size=2, dedicated=dedicated
    )
    results = launch(["a", "b", "c", "d", "e"], config, train, 30)
    assert [each[0] for each in results] == [results[0][0]] * 5
    assert max(loss for _, loss, _ in results) < 0.3
    pushed = sum(counters.pushed for _, _, counters in results)
    assert pushed == 30 * (3 if dedicated is None else 5)
    # Each primary puts all gradients into steps of its own share.
    assert [counters.reduced for _, _, counters in results] == [pushed, 0, pushed, 0, 0]


def more_primaries_than_elements(rt: Runtime) -> tuple[list[list[float]], int]:
    reducer, model = rt.reducer, nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    if reducer.trains:
        model.weight.grad = torch.ones(1, 1)
        reducer.push(model)
    reducer.stop()
    return parameters(model), reducer.counters().reduced


def test_a_share_may_be_empty() -> None:
    config = GradServerReducerConfig(primaries=PRIMARIES)
    results = launch([*PRIMARIES, "w"], config, more_primaries_than_elements)
    assert results == [([[2.0]], 1)] * 3 + [([[2.0]], 0)]


def manage_another(rt: Runtime) -> str:
    reducer, model = rt.reducer, line(outputs=2 if rt.name == "p1" else 1)
    reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if rt.name == "p0":
        reducer.start()
        return ""
    with pytest.raises(ValueError, match=r"it has trainable '1\.weight'") as caught:
        reducer.start()
    raise caught.value


def test_their_models_must_be_alike() -> None:
    config = GradServerReducerConfig(primaries=("p0", "p1"))
    with pytest.raises(
        ValueError, match=r"the managed has trainable '1\.weight' of shape \(1, 4\)"
    ):
        launch(["p0", "p1"], config, manage_another)


def optimizer_states(rt: Runtime) -> list[list[float]]:
    reducer, model = rt.reducer, nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    if reducer.manages:
        optimizer.state[model.weight]["momentum_buffer"] = torch.full((1, 4), 8.0)
        reducer.manage_model(model, optimizer)
    reducer.start()
    if reducer.trains:
        model.weight.grad = torch.ones(1, 4)
        reducer.push(model)
    reducer.stop()
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]
    assert optimizer.param_groups[0]["params"][0] is model.weight
    states = [optimizer.state[each]["momentum_buffer"] for each in optimizer.state]
    assert all(each.shape == (1, 4) for each in states)
    return [each.flatten().tolist() for each in states]


def test_each_hands_its_part_of_the_optimizers_state_back() -> None:
    config = GradServerReducerConfig(primaries=("p0", "p1"))
    first, second, _ = launch(["p0", "p1", "w"], config, optimizer_states)
    assert first == [[5.0, 5.0, 8.0, 8.0]]
    assert second == [[8.0, 8.0, 5.0, 5.0]]


# -- one that ends --------------------------------------------------------------------------------


def push_often(reducer: Reducer, model: nn.Module) -> None:
    for _ in range(10):
        backward(model, 1)
        reducer.push(model)


def outlive_a_primary(rt: Runtime) -> tuple[str, str] | None:
    reducer, model = rt.reducer, line()
    lost = threading.Event()
    rt.group().when_lost(lambda member, _: lost.set() if member == "leaver" else None)
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.1))
    reducer.start()
    if rt.name == "leaver":
        return None
    assert lost.wait(PATIENCE)
    said = ""
    if reducer.trains:
        with pytest.raises(PeerLostError) as caught:
            push_often(reducer, model)  # until the secondary has found it out
        assert all(each.grad is not None for each in model.parameters())
        with pytest.raises(PeerLostError):
            reducer.push(model)
        said = caught.value.peer
    with pytest.raises(PeerLostError) as stopped:
        reducer.stop()
    return said, stopped.value.peer


@pytest.mark.parametrize("secondaries", [None, ("p0",), ("w",)])
def test_a_primary_that_ends_is_an_error(secondaries: tuple[str, ...] | None) -> None:
    leaver: Any = {"name": "leaver", "override": {"close_timeout": 0.05}}
    config = GradServerReducerConfig(primaries=("p0", "leaver"), secondaries=secondaries)
    results = launch(["p0", leaver, "w", "v"], config, outlive_a_primary)
    assert results == [("", "leaver"), None, ("leaver", "leaver"), ("leaver", "leaver")]


# -- shares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5, 100])
def test_shares_are_disjoint_and_nearly_equal(count: int) -> None:
    model = Mixed()
    cut = shares(Layout.of(model), count)
    assert len(cut) == count
    marked = {name: torch.zeros_like(each) for name, each in model.state_dict().items()}
    for share in cut:
        targets = share.targets(marked)
        for each in targets.values():
            each += 1
        share.settle(targets, marked)
    assert all((each == 1).all() for each in marked.values())
    for dtype in (torch.float32, torch.float64):
        sizes = [each.layout.gradients.sizes.get(dtype, 0) for each in cut]
        assert max(sizes) - min(sizes) <= 1
    assert all(not len(each.layout.buffers) for each in cut[1:])


def test_pieces_are_small() -> None:
    model = nn.Linear(1500, 2000, dtype=torch.float64)
    image = Image(Layout.of(model))
    assert image.nbytes == 1501 * 2000 * 8
    assert max(end - start for start, end in image.pieces) == PIECE == 4 * 2**20
    assert [start for start, _ in image.pieces[1:]] == [end for _, end in image.pieces[:-1]]
    elements = sum(each.size for windows in image.windows for each in windows)
    assert elements == 1501 * 2000


# -- bad input ------------------------------------------------------------------------------------


def manages(rt: Runtime) -> tuple[bool, bool]:
    return rt.reducer.manages, rt.reducer.trains


def test_who_manages_and_who_trains() -> None:
    both = GradServerReducerConfig(primaries=("a", "b"))
    assert launch(["a", "b", "c"], both, manages) == [(True, False)] * 2 + [(False, True)]
    assert launch(["a", "b"], both, manages) == [(True, True)] * 2


def manage_elsewhere(rt: Runtime) -> None:
    if not rt.reducer.manages:
        message = "'c' does not manage the model, 'a' and 'b' do: call manage_model"
        with pytest.raises(RuntimeError, match=message):
            rt.reducer.manage_model(line(), torch.optim.SGD(line().parameters(), lr=0.1))


def test_managing_elsewhere() -> None:
    launch(["a", "b", "c"], GradServerReducerConfig(primaries=("a", "b")), manage_elsewhere)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"primaries": ("pss",)}, r"reducer\.primaries: 'pss' is no member.*Did you mean 'ps'"),
        ({"primaries": ("ps", "ps")}, r"reducer\.primaries: 'ps' is named twice"),
        ({"secondaries": ("a", "ps", "a")}, r"reducer\.secondaries: 'a' is named twice"),
        ({"primaries": ("ps",), "primary": "ps"}, r"reducer\.primaries: give 'primary' or"),
    ],
)
def test_members_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch(["ps", "a"], GradServerReducerConfig(**options), manages)
