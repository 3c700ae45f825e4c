"""What the parts of the reducers' suite share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import Reducer, ReducerConfig
from pparallel.testing.suite import Suite
from pparallel.testing.threads import in_threads

MEMBERS = 3
LIMIT = 110.0  #: seconds that a job may take, whatever starts its members


class ReducerTests(Suite):
    """One reducer alone, and members that each have one."""

    interface: ClassVar[str] = "reducer"

    @pytest.fixture
    def reducer(self, config: ReducerConfig, build: Callable[..., Reducer]) -> Iterator[Reducer]:
        """The reducer of a member that is alone."""
        with build(config) as reducer:
            yield reducer

    def launch(
        self,
        launcher: LauncherConfig,
        config: ReducerConfig | None,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        **extra: ReducerConfig,
    ) -> list[Any]:
        """Run *target* in members that have the reducer, None: the default, and *extra* ones."""
        parts: dict[str, Any] = {"launcher": launcher, "reducer": config}
        job = pparallel.RuntimeConfig(members=MEMBERS, extra=dict(extra), **parts)
        (results,) = in_threads(1, lambda _: pparallel.launch(job, target, args), LIMIT)
        return results
