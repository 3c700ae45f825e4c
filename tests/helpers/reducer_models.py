"""What members train in the tests of reducers, and how they begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

import pparallel
from pparallel.interfaces.reducer import ReducerConfig

if TYPE_CHECKING:
    from pparallel.builder import Runtime

M = TypeVar("M", bound=nn.Module)


def numbers(value: float = 0.0) -> nn.Linear:
    """Return a model of three float64 numbers."""
    model = nn.Linear(1, 3, bias=False, dtype=torch.float64)
    nn.init.constant_(model.weight, value)
    return model


def values(model: nn.Module) -> list[float]:
    """Return the numbers of a model that has one parameter."""
    (parameter,) = model.parameters()
    return [float(each) for each in parameter.detach().flatten()]


def one_weight(value: float = 0.0, extra: int = 1) -> nn.Module:
    """Return a model of one number, or of *extra*."""
    model = nn.Linear(1, extra, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def weight(model: nn.Module) -> float:
    """Return the first number of a model that has one parameter."""
    return values(model)[0]


def launch(members: Any, reducer: ReducerConfig, target: Callable[..., Any], *args: Any) -> Any:
    """Run *target* in members, which are threads, that have the reducer."""
    return pparallel.launch(pparallel.RuntimeConfig(members=members, reducer=reducer), target, args)


def begun(
    rt: Runtime, model: M, optimizer: torch.optim.Optimizer | None = None, *, lr: float = 1.0
) -> M:
    """Have the reducer train *model*, where it manages one; return the model.

    Args:
        rt: the member's.
        model: what is trained.
        optimizer: what steps it; by default plain descent.
        lr: the learning rate of that.
    """
    if rt.reducer.manages:
        rt.reducer.manage_model(model, optimizer or torch.optim.SGD(model.parameters(), lr=lr))
    rt.reducer.start()
    return model


class Odd(nn.Module):
    """Parameters and buffers of many dtypes and shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.short = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.imaginary = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
        self.long = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.empty = nn.Parameter(torch.ones(0, 4))
        self.turned = nn.Parameter(torch.arange(6.0).view(2, 3).T)
        self.tied = self.long
        self.frozen = nn.Parameter(torch.full((2,), 7.0), requires_grad=False)
        self.mean: Tensor
        self.count: Tensor
        self.cache: Tensor
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def pass_over(self, rank: int) -> None:
        """Have gradients of ones, and buffers as after a batch of member *rank*."""
        for each in self.parameters():
            each.grad = torch.ones_like(each) if each.requires_grad else None
        self.mean += rank
        self.count += 5
        self.cache += rank

    def state(self) -> dict[str, Tensor]:
        """Return all that it is made of."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}


def check_a_step(state: dict[str, Tensor], rank: int, mean: float) -> None:
    """Check what a step of 1 on gradients of ones made of an :class:`Odd` of member *rank*.

    Args:
        state: what the model is made of then.
        rank: the member's.
        mean: what its running mean is to be.
    """
    assert state["short"].tolist() == [0] * 3
    assert state["imaginary"].tolist() == [[0, 0], [0, 0]]
    assert state["long"].item() == 0
    assert state["turned"].tolist() == [[-1, 2], [0, 3], [1, 4]]
    assert state["frozen"].tolist() == [7, 7], "all begin with what is frozen in one"
    assert state["mean"].tolist() == [mean] * 2, "running means are averaged, or the first's"
    assert state["count"].tolist() == [5, 5]
    assert state["cache"].item() == rank, "a buffer that is not persistent was touched"
