"""Sequences of calls in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.testing.pool.base import PoolTests


class SequenceTests(PoolTests):
    """The state machine of :mod:`pparallel.testing.machines`.

    Attributes:
        sequences: how many it tries, each with a pool of its own.
    """

    sequences: ClassVar[int] = 16

    def test_any_sequence_of_calls(
        self, config: PoolConfig, build: Callable[..., Pool], features: frozenset[str]
    ) -> None:
        from pparallel.testing.machines import pool_machine, run_machine

        machine = pool_machine(config, build=build, features=features)
        run_machine(machine, sequences=self.sequences)
