"""Faults of machin's assigner that are gone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_compat_assigner import assigned, machine, made, start, stepped  # noqa: F401
from torch import nn

from pparallel.compat.machin.assigner import ModelAssigner, ModelSizeEstimator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"model_connection": torch.zeros(2, 2)}, id="no connections"),
        pytest.param({"device_distance": torch.zeros(2, 2)}, id="no distance"),
        pytest.param({"complexity_capacity": torch.zeros(1, 2)}, id="no power"),
        pytest.param({"model_complexity": torch.zeros(1, 2)}, id="nothing to compute"),
    ],
)
def test_a_step_where_a_sum_is_0_is_a_number(given: Any, dtype: torch.dtype) -> None:
    """The relaxation divides by sums: 0 makes NaN, and the argmax of NaN means nothing."""
    placement = start([[0.2, 0.1], [0.0, 0.3]], dtype)
    stepped(placement, **given)
    assert bool(placement.isfinite().all())
    assert placement.dtype == dtype


def test_a_step_with_one_device_is_a_number() -> None:
    """One device is at no distance from itself: the sum of the distances is 0."""
    placement = start([[0.2], [0.1]])
    stepped(placement)
    assert bool(placement.isfinite().all())


def test_a_step_from_what_is_nearly_certain_is_a_number() -> None:
    """The entropy of a probability of 0 is 0, and its logarithm is not."""
    placement = start([[1000.0, -1000.0], [0.0, 1000.0]])
    stepped(placement, entropy_weight=1.0)
    assert bool(placement.isfinite().all())


def test_no_connections_place_by_work_alone(machine: Any, made: Any) -> None:  # noqa: F811
    """No connections give NaN, and all models go to the first device."""
    machine([1000, 1000], 1000)
    found = assigned(made(10, 10, 10, 10), model_connection={})
    assert sorted(found) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]


def test_models_of_bfloat16() -> None:
    """A parameter of bfloat16 is an invalid data type to the size estimator."""
    model = nn.Linear(1024, 512, bias=False, dtype=torch.bfloat16)
    assert ModelSizeEstimator(model, 1).estimate_size() == 1.0
    assigner = ModelAssigner([model, nn.Linear(2, 2, dtype=torch.complex64)], {(0, 1): 1}, ["cpu"])
    assert assigner.assignment == [torch.device("cpu")] * 2


def test_memory_is_a_hard_limit(machine: Any, made: Any) -> None:  # noqa: F811
    """Memory is only a soft penalty: with a small weight, what does not fit is put there anyway."""
    machine([1000, 1000], 0)
    found = assigned(
        made(600, 600, 50),
        model_connection={(0, 1): 100, (1, 2): 1},
        connection_weight=1000,
        size_match_weight=0,
    )
    assert found[0] != found[1], "two models of 600 MB do not fit on one GPU that allows 700"
