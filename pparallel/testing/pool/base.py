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
Gates = Callable[[], Gate]

#: options that not every isolated pool has; their tests are skipped where they do not exist
OPTIONS = frozenset({"max_rss", "max_tasks", "retries", "task_timeout"})


class PoolTests(Suite):
    """The fixtures of the pool's tests."""

    interface: ClassVar[str] = "pool"

    @pytest.fixture
    def make(self, config: PoolConfig, build: Callable[..., Any]) -> Make:
        """Make a pool of the backend under test, with some options changed; it is not open."""

        def make(**changes: object) -> Pool:
            if missing := sorted(OPTIONS.intersection(changes) - set(type(config).model_fields)):
                pytest.skip(f"the backend has no option {missing[0]}")
            pool: Pool = build(changed(config, **changes))
            return pool

        return make

    @pytest.fixture
    def pool(self, make: Make) -> Iterator[Pool]:
        """An open pool of two workers."""
        with make(size=2) as pool:
            yield pool

    @pytest.fixture
    def gates(self, tmp_path: Path) -> Iterator[Gates]:
        """Make gates; each is opened at the end of the test if not before."""
        made: list[Gate] = []

        def gate() -> Gate:
            directory = tmp_path / f"gate-{len(made)}"
            directory.mkdir()
            made.append(Gate(directory))
            return made[-1]

        yield gate
        for each in made:
            each.close()

    @pytest.fixture
    def gate(self, gates: Gates) -> Gate:
        """A gate, opened at the end of the test if not before."""
        return gates()

    @pytest.fixture
    def notes(self, tmp_path: Path) -> Path:
        """A file for tasks to note what they did."""
        return tmp_path / "notes"
