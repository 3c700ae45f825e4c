"""A launcher that cannot start threads: it fails once, and the next time works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from exhausted import no_threads

import pparallel
from pparallel.errors import ResourceExhaustedError
from pparallel.interfaces.launcher import Launcher, LauncherConfig
from pparallel_local import ThreadLauncherConfig
from pparallel_process import ProcessLauncherConfig


def in_threads(launcher: Launcher) -> object:
    return launcher.spawn(lambda rank: rank, nprocs=2)


def in_processes(launcher: Launcher) -> object:
    return launcher.spawn(abs, nprocs=1, start_method="fork")


@pytest.mark.parametrize(
    ("config", "launch"),
    [(ThreadLauncherConfig(), in_threads), (ProcessLauncherConfig(), in_processes)],
    ids=["thread", "process"],
)
def test_no_thread_can_be_started_once(
    config: LauncherConfig, launch: Callable[[Launcher], object]
) -> None:
    with pparallel.build(config) as launcher:
        with no_threads(), pytest.raises(ResourceExhaustedError, match="threads"):
            launch(launcher)
        launch(launcher)
