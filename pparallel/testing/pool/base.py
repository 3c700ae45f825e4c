"""What the parts of the pool's suite share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.testing.gate import Gate
from pparallel.testing.suite import Suite, changed

Make = Callable[..., Pool]


class PoolTests(Suite):
    """The fixtures of the pool's tests."""

    interface: ClassVar[str] = "pool"

    @pytest.fixture
    def make(self, config: PoolConfig, build: Callable[..., Any]) -> Make:
        """Make a pool of the backend under test, with some options changed; it is not open."""

        def make(**changes: object) -> Pool:
            pool: Pool = build(changed(config, **changes))
            return pool

        return make

    @pytest.fixture
    def pool(self, make: Make) -> Iterator[Pool]:
        """An open pool of two workers."""
        with make(size=2) as pool:
            yield pool

    @pytest.fixture
    def gate(self, tmp_path: Path) -> Iterator[Gate]:
        """A gate, opened at the end of the test if not before."""
        directory = tmp_path / "gate"
        directory.mkdir()
        gate = Gate(directory)
        yield gate
        gate.close()

    @pytest.fixture
    def notes(self, tmp_path: Path) -> Path:
        """A file for tasks to note what they did."""
        return tmp_path / "notes"
