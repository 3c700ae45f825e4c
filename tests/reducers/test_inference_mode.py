"""Collectives on tensors that were made in inference mode, beyond the forms of the suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import pparallel
from pparallel.interfaces.collective.messages import validated

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def add_up_in_the_background(rt: Runtime) -> list[float]:
    with torch.inference_mode():
        several = [torch.full((3,), float(rt.rank + 1)) for _ in range(2)]
        work = rt.collective.all_reduce_multigpu(several, async_op=True)
        assert work is not None
        work.wait()
        gathered = [[torch.zeros(3) for _ in range(4)]]
        work = rt.collective.all_gather_multigpu(gathered, several, async_op=True)
        assert work is not None
        work.wait()
    return [each[0].item() for each in [*several, *gathered[0]]]


def test_multigpu_forms_in_the_background() -> None:
    assert pparallel.launch({"members": 2}, add_up_in_the_background) == [[6.0] * 6] * 2


def test_what_has_no_memory_of_its_own_stays_what_it_is() -> None:
    with torch.inference_mode():
        two = TwoTensor(torch.ones(3), torch.ones(3))
        zero = torch._efficientzerotensor((3,))
    assert isinstance(validated(two), TwoTensor)
    assert validated(zero)._is_zerotensor()


@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.Tensor])
def test_others_can_be_written_to(kind: type[torch.Tensor]) -> None:
    with torch.inference_mode():
        made = torch.nn.Parameter(torch.ones(3)) if kind is torch.nn.Parameter else torch.ones(3)
    validated(made).add_(1)
    assert made.tolist() == [2.0] * 3
