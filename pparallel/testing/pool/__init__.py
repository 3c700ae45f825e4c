"""PoolSuite: what every pool must do."""

from __future__ import annotations

from pparallel.testing.pool.calls import CallTests
from pparallel.testing.pool.failures import FailureTests
from pparallel.testing.pool.lifetime import LifetimeTests
from pparallel.testing.pool.streams import StreamTests
from pparallel.testing.pool.workers import WorkerTests

__all__ = ["PoolSuite"]


class PoolSuite(CallTests, StreamTests, FailureTests, LifetimeTests, WorkerTests):
    """Checks the guarantees of :class:`pparallel.Pool`, through what a user sees.

    Tests that need tasks to wait for one another are for pools that declare ``parallel``.
    """
