"""The reducer ``local``."""

from __future__ import annotations

import pytest
import torch
from reducer_models import begun, one_weight, weight
from typing_extensions import override

import pparallel
from pparallel.interfaces.reducer import ReducerConfig
from pparallel.testing import ReducerSuite
from pparallel_reducers import LocalReducerConfig


class TestLocalReducer(ReducerSuite):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return LocalReducerConfig()


def test_the_model_that_was_pulled_into_last_has_the_final_parameters() -> None:
    model, other = one_weight(), one_weight().requires_grad_(False)
    with pparallel.build({"reducer": {"backend": "local"}}) as rt:
        begun(rt, model)
        for _ in range(2):
            model(torch.ones(1, 1)).sum().backward()
            rt.reducer.push(model)
            assert rt.reducer.pull(other)
            assert not rt.reducer.pull(other)
            assert weight(other) == weight(model)
        model(torch.ones(1, 1)).sum().backward()
        rt.reducer.push(model)
        rt.reducer.stop()
        assert weight(other) == weight(model) == -3.0
