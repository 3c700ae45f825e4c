"""What the parts of a model exchange and compute."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

from pparallel import Device, measure_connections
from pparallel.interfaces.placer import Placer, PlacerConfig, Problem, Solution


class Agent(nn.Module):
    """An encoder and a memory whose state feeds an actor and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(10, 100)
        self.memory = nn.LSTM(100, 50, batch_first=True)
        self.actor = nn.Linear(50, 4)
        self.critic = nn.Sequential(nn.Linear(54, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 1))

    @override
    def forward(self, observation: dict[str, tuple[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return what to do, and what it is worth."""
        code = torch.relu(self.encoder(observation["pixels"][0]))
        state, _ = self.memory(code)
        action = self.actor(state)
        return {"action": action, "value": self.critic(torch.cat([state, action], -1))}


def sample(device: str = "cpu") -> dict[str, tuple[torch.Tensor]]:
    return {"pixels": (torch.zeros(2, 5, 10, device=device),)}


EXCHANGED = {
    ("encoder", "memory"): 4 * 10 * 100,
    ("memory", "actor"): 4 * 10 * 50,
    ("memory", "critic"): 4 * 10 * 50,
    ("actor", "critic"): 4 * 10 * 4,
}
COMPUTED = {
    "encoder": 2 * 10 * 10 * 100,
    "memory": 2 * 10 * 4 * 50 * (100 + 50),
    "actor": 2 * 10 * 50 * 4,
    "critic": 2 * 10 * (54 * 8 + 8),
}


def test_bytes_and_operations() -> None:
    found = measure_connections(Agent(), sample())
    assert dict(found) == EXCHANGED
    assert found.compute == COMPUTED
    assert list(found.parts) == ["encoder", "memory", "actor", "critic"]


def test_a_model_on_meta() -> None:
    found = measure_connections(Agent().to("meta"), sample("meta"))
    assert dict(found) == EXCHANGED
    assert found.compute == COMPUTED


@pytest.mark.gpu
def test_a_model_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    found = measure_connections(Agent().to("cuda"), sample("cuda"))
    assert dict(found) == EXCHANGED
    assert found.compute == COMPUTED


def kernels() -> list[bool]:
    """Which fused kernels torch may use."""
    libraries: list[Any] = [torch.backends.mkldnn, torch.backends.cudnn]
    return [each.enabled for each in libraries] + [torch.backends.mha.get_fastpath_enabled()]


def test_the_model_is_left_as_it_was() -> None:
    model = Agent()
    model.critic[2].eval()
    modes = [each.training for each in model.modules()]
    before = {name: each.clone() for name, each in model.state_dict().items()}
    settings = kernels()
    measure_connections(model, sample())
    assert [each.training for each in model.modules()] == modes
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert torch.is_grad_enabled()
    assert kernels() == settings
    assert model(sample())["value"].requires_grad


def test_a_forward_pass_that_fails_leaves_it_so_too() -> None:
    model, settings = Agent(), kernels()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        measure_connections(model, {"pixels": (torch.zeros(2, 5, 7),)})
    assert model.training
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert torch.is_grad_enabled()
    assert kernels() == settings


@dataclasses.dataclass
class Both:
    """What a part may return."""

    mean: torch.Tensor
    spread: list[torch.Tensor]


class Maker(nn.Module):
    @override
    def forward(self, x: torch.Tensor) -> Both:
        return Both(x + 1, [x + 2, x + 3])


class Dice(nn.Module):
    @override
    def forward(self, x: torch.Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(x + 1, torch.ones_like(x), validate_args=False)


class Taker(nn.Module):
    @override
    def forward(self, *values: Any, **more: Any) -> torch.Tensor:
        first = values[0] if values else more["value"]
        if isinstance(first, Both):
            return first.mean + first.spread[1]
        if isinstance(first, torch.distributions.Normal):
            return first.mean + first.stddev
        return sum([first, *values[1:]], torch.zeros(()))


class Pair(nn.Module):
    """Two parts, and what comes between them."""

    def __init__(self, between: Any, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.between, self.first, self.second = between, first, second

    @override
    def forward(self, x: torch.Tensor) -> Any:
        return self.between(self, x)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Add(nn.Module):
    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def in_place(model: Pair, x: torch.Tensor) -> Any:
    rows = torch.zeros(10)
    rows[2:5] = model.first(x)[:3]
    return model.second(rows)


def told_again(model: Pair, x: torch.Tensor) -> Any:
    y = model.first(x)
    return model.second(y) + model.second(y) + model.second(y, y)


def changed_between(model: Pair, x: torch.Tensor) -> Any:
    y = model.first(x)
    z = model.second(y)
    y += 1
    return z + model.second(y)


@pytest.mark.parametrize(
    ("between", "first", "moved"),
    [
        (lambda m, x: m.second(m.first(x)), Add(), 40),
        (lambda m, x: m.second(value=m.first(x)), Add(), 40),
        (lambda m, x: m.second(m.first(x)), Maker(), 120),
        (lambda m, x: m.second(m.first(x)), Dice(), 80),
        (lambda m, x: m.second(m.first(x).mean()), Add(), 4),
        (lambda m, x: m.second(m.first(x)[:3]), Add(), 12),
        (lambda m, x: m.second(m.first(x).repeat(5)), Add(), 40),
        (lambda m, x: m.second(torch.cat([m.first(x), x])), Add(), 40),
        (lambda m, x: m.second(m.first(x).to(torch.float16)), Add(), 20),
        (lambda m, x: m.second(m.first(x).shape[0] * x), Add(), 0),
        (lambda m, x: m.second(m.first(m.second(x))), Add(), 80),
        (lambda m, x: m.second(m.first(x)), nn.Identity(), 40),
        (in_place, Add(), 12),
        (told_again, Add(), 40),
        (changed_between, Add(), 80),
    ],
)
def test_what_moves(between: Any, first: nn.Module, moved: int) -> None:
    found = measure_connections(Pair(between, first, Taker()), torch.zeros(10))
    assert sum(found.values()) == moved


def test_a_part_that_calls_another() -> None:
    class Inner(nn.Module):
        def __init__(self, other: nn.Module) -> None:
            super().__init__()
            self.linear = nn.Linear(10, 10)
            self.other = [other]  # not as a submodule

        @override
        def forward(self, x: torch.Tensor) -> Any:
            return self.other[0](self.linear(x)) + 1

    second = nn.Linear(10, 3)
    model = Pair(lambda m, x: m.first(x), Inner(second), second)
    found = measure_connections(model, torch.zeros(2, 10))
    assert dict(found) == {("first", "second"): 80, ("second", "first"): 24}
    assert found.compute == {"first": 2 * 2 * 100, "second": 2 * 2 * 30}


def test_parts_by_name() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 16)), nn.Linear(16, 2))
    found = measure_connections(model, torch.zeros(1, 4), parts=["0.0", "0.1", "1"])
    assert dict(found) == {("0.0", "0.1"): 32, ("0.1", "1"): 64}


def test_a_function_that_calls_parts() -> None:
    parts = {"a": nn.Linear(4, 8), "b": nn.Linear(8, 2)}

    def act(x: torch.Tensor, *, scale: float) -> torch.Tensor:
        y: torch.Tensor = parts["b"](parts["a"](x) * scale)
        return y

    found = measure_connections(act, (torch.zeros(3, 4),), {"scale": 2.0}, parts=parts)
    assert dict(found) == {("a", "b"): 96}
    assert all(part.training for part in parts.values())


def test_what_was_not_called_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model = Pair(lambda m, x: m.first(x), Add(), Add())
    with caplog.at_level(logging.WARNING):
        found = measure_connections(model, torch.zeros(3))
    assert found.compute == {"first": 0, "second": 0}
    assert caplog.messages == ["The forward pass did not call second: nothing is known of it"]


def test_attention_is_counted_where_torch_would_fuse_it() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = measure_connections(nn.Sequential(layer, nn.Linear(8, 1)), torch.zeros(3, 5, 8))
    tokens = 3 * 5
    assert found.compute["0"] >= 2 * tokens * (4 * 8 * 8 + 2 * 8 * 16)


class Sees(Placer):
    """Keeps the problem that it is given."""

    @override
    def solve(self, problem: Problem) -> Solution:
        self.problem = problem
        return Solution((0, 0, 1, 1))


def test_it_is_placed_as_it_is() -> None:
    found = measure_connections(Agent(), sample())
    placer = Sees(PlacerConfig(backend="sees"))
    placement = placer.place(found.parts, found, [Device("cuda:0", 100.0), Device("cpu", 100.0)])
    assert placer.problem.connections[0][1] == EXCHANGED["encoder", "memory"]
    assert placement.compute == COMPUTED
    header, first, _, _, within, across, _ = placement.explain().splitlines()
    assert header.split()[-1] == "compute"
    assert first.split()[-1] == "98%"
    assert within.split() == ["within", "devices", "4160", "51%"]
    assert across.split() == ["cuda:0", "-", "cpu", "4000", "49%"]


def test_parts_that_are_none() -> None:
    model = Agent()
    with pytest.raises(ValueError, match="Linear has no parts"):
        measure_connections(nn.Linear(2, 2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"no submodule 'critics'; it has: encoder, .*critic\.0"):
        measure_connections(model, sample(), parts=["critics"])
    with pytest.raises(ValueError, match=r"part 'critic\.0' is in part 'critic'"):
        measure_connections(model, sample(), parts=["critic", "critic.0"])
    with pytest.raises(TypeError, match="say its parts"):
        measure_connections(double, torch.zeros(2))
