"""Gradients that are drawn, and interrupts, in the tests of ``diloco`` and ``model_server``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
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


def interrupt_once(
    monkeypatch: pytest.MonkeyPatch,
    method: tuple[type, str],
    when: Callable[..., bool],
    *,
    late: bool = False,
    first: Callable[[], object] = int,
) -> None:
    """Have *method* interrupted the first time that *when* is true of its arguments.

    Args:
        monkeypatch: undoes it.
        method: a class, and the name of what it has.
        when: which call.
        late: whether that has done its work by then.
        first: is called before the interrupt.
    """
    plain = getattr(*method)
    interrupted: list[bool] = []

    def patched(*args: Any, **options: Any) -> Any:
        now = not interrupted and when(*args)
        if now:
            interrupted.append(True)
        found = None if now and not late else plain(*args, **options)
        if now:
            first()
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(*method, patched)
