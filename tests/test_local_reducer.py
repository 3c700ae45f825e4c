"""The reducer ``local``."""

from __future__ import annotations

import pytest
from typing_extensions import override

from pparallel.interfaces.reducer import ReducerConfig
from pparallel.testing import ReducerSuite
from pparallel_reducers import LocalReducerConfig


class TestLocalReducer(ReducerSuite):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return LocalReducerConfig()
