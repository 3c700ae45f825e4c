"""Functions in TorchScript."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch would rather have it gone

    @torch.jit.script
    def script_add(one: Tensor, other: Tensor) -> Tensor:
        return one + other

    def negated(value: Tensor) -> Tensor:
        return -value

    other_name = torch.jit.script(negated)


def made_inside() -> Callable[[Tensor], Tensor]:
    def inner(value: Tensor) -> Tensor:
        return value

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        made: Callable[[Tensor], Tensor] = torch.jit.script(inner)
    return made
