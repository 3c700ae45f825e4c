"""Conformance suites for those who write a backend, and what the suites are made of.

Subclass the suite of the interface, name its config, and run pytest::

    from pparallel.testing import PoolSuite

    class TestShelfPool(PoolSuite):
        @pytest.fixture
        def config(self):
            return ShelfPoolConfig()

The tests that the backend's declared features do not call for are skipped.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pparallel.testing.collective import CollectiveSuite
    from pparallel.testing.launcher import LauncherSuite
    from pparallel.testing.leftovers import no_leftovers
    from pparallel.testing.ordered_server import OrderedServerSuite
    from pparallel.testing.placer import PlacerSuite
    from pparallel.testing.pool import PoolSuite
    from pparallel.testing.reducer import ReducerSuite
    from pparallel.testing.serializer import SerializerSuite
    from pparallel.testing.suite import Suite, overrides, requires
    from pparallel.testing.training import TrainingSuite
    from pparallel.testing.transport import TransportSuite

__all__ = [
    "CollectiveSuite",
    "LauncherSuite",
    "OrderedServerSuite",
    "PlacerSuite",
    "PoolSuite",
    "ReducerSuite",
    "SerializerSuite",
    "Suite",
    "TrainingSuite",
    "TransportSuite",
    "no_leftovers",
    "overrides",
    "requires",
]

_HOMES = {
    "CollectiveSuite": "collective",
    "LauncherSuite": "launcher",
    "OrderedServerSuite": "ordered_server",
    "PlacerSuite": "placer",
    "PoolSuite": "pool",
    "ReducerSuite": "reducer",
    "SerializerSuite": "serializer",
    "Suite": "suite",
    "TrainingSuite": "training",
    "TransportSuite": "transport",
    "no_leftovers": "leftovers",
    "overrides": "suite",
    "requires": "suite",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    home = f"{__name__}.{_HOMES[name]}"
    if home not in sys.modules and "pytest" in sys.modules:
        import pytest

        pytest.register_assert_rewrite(home)
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
