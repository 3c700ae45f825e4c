"""PoolSuite: what every pool must do."""

from __future__ import annotations

from pparallel.testing.pool.calls import CallTests
from pparallel.testing.pool.failures import FailureTests
from pparallel.testing.pool.isolation import IsolationTests
from pparallel.testing.pool.lifetime import LifetimeTests
from pparallel.testing.pool.observation import ObservationTests
from pparallel.testing.pool.options import OptionTests
from pparallel.testing.pool.ownership import OwnershipTests
from pparallel.testing.pool.sequences import SequenceTests
from pparallel.testing.pool.streams import StreamTests
from pparallel.testing.pool.surroundings import SurroundingsTests
from pparallel.testing.pool.workers import WorkerTests

__all__ = ["PoolSuite"]


class PoolSuite(
    CallTests,
    StreamTests,
    FailureTests,
    LifetimeTests,
    WorkerTests,
    SurroundingsTests,
    ObservationTests,
    OwnershipTests,
    IsolationTests,
    OptionTests,
    SequenceTests,
):
    """Checks the guarantees of :class:`pparallel.Pool`, through what a user sees.

    Tests that need tasks to wait for one another are for pools that declare ``parallel``. Tests of
    an option that not every isolated pool has (``max_tasks``, ``max_rss``, ``task_timeout``,
    ``retries``) are skipped where the config has no such field.
    """
