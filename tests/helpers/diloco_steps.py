"""Gradients that are drawn, in the tests of ``diloco``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def draw(rank: int, step: int) -> torch.Tensor:
    """The gradient that a member computes, whatever its parameters."""
    random = torch.Generator().manual_seed(1000 * rank + step)
    return torch.rand(3, 1, generator=random, dtype=torch.float64) - 0.3


def step_on(rt: Runtime, model: nn.Module, gradient: torch.Tensor) -> None:
    next(iter(model.parameters())).grad = gradient.clone()
    assert rt.reducer.step(model)
