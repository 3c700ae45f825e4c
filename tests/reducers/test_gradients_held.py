"""Which gradients are reduced where they lie, and which are the program's too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from pparallel_reducers.gradients import held


def parameter(gradient: Tensor | None) -> Parameter:
    found = Parameter(torch.zeros(4))
    found.grad = gradient
    return found


def of_backward() -> Parameter:
    found = Parameter(torch.zeros(4))
    (found * 2).sum().backward()
    return found


def test_gradients_of_a_backward_pass_are_held_by_nobody() -> None:
    assert held([of_backward() for _ in range(3)]) == [False] * 3


def test_gradients_that_are_missing_or_sparse_are_held_by_nobody() -> None:
    assert held([parameter(None), parameter(torch.ones(4).to_sparse())]) == [False] * 2


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda gradient: gradient,
    "list": lambda gradient: [gradient],
    "view": lambda gradient: gradient.view(2, 2),
    "detached": lambda gradient: gradient.detach(),
    "storage": lambda gradient: gradient.untyped_storage(),
    "numpy": lambda gradient: gradient.numpy(),
    "closure": lambda gradient: lambda: gradient,
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_what_the_program_keeps_is_held(holder: Callable[[Tensor], Any]) -> None:
    kept, free = of_backward(), of_backward()
    assert kept.grad is not None
    something = holder(kept.grad)
    assert held([kept, free]) == [True, False]
    del something
    # numpy() marks memory as not to be resized, for good: to copy it is safe.
    assert held([kept, free]) == [not kept.grad.untyped_storage().resizable(), False]


FOREIGN: dict[str, Callable[[], Tensor]] = {
    "from_numpy": lambda: torch.from_numpy(np.ones(4, np.float32)),
    "asarray": lambda: torch.asarray(np.ones(4, np.float32)),
    "frombuffer": lambda: torch.frombuffer(bytearray(16), dtype=torch.float32),
    "dlpack": lambda: torch.utils.dlpack.from_dlpack(np.ones(4, np.float32)),
    "shared": lambda: torch.ones(4).share_memory_(),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_memory_that_is_not_torchs_own_is_held(make: Callable[[], Tensor]) -> None:
    assert held([parameter(make())]) == [True]
