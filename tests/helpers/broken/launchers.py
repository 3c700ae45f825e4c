"""Broken launchers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from typing_extensions import override

import pparallel_local
import pparallel_process
from broken.harness import Backends, rejected_by
from pparallel.interfaces.launcher import LaunchContext, RankSpec, StartMethod
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.processes import Exit
from pparallel.testing import LauncherSuite
from pparallel_local import ThreadLauncherConfig
from pparallel_local.thread_launcher import ThreadLaunchContext, ThreadLauncher
from pparallel_process import ProcessLauncherConfig
from pparallel_process.launcher.context import ProcessLaunchContext
from pparallel_process.launcher.process_launcher import ProcessLauncher
from pparallel_process.launcher.rank_process import RankProcess
from pparallel_process.launcher.starting import started

backends = Backends(ThreadLauncherConfig, pparallel_local)
isolated = Backends(ProcessLauncherConfig, pparallel_process)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return [*backends.records, *isolated.records]


class BrokenLauncherSuite(LauncherSuite):
    """Loses patience soon: much of what it waits for never comes."""

    patience: ClassVar[float] = 0.5


class ChangedLauncher(ThreadLauncher):
    """Has its ranks in a context of another class."""

    Context: ClassVar[type[ThreadLaunchContext]] = ThreadLaunchContext

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        refused = [each for each in ranks if each.env]
        super().start(refused, daemon=daemon, start_method=start_method)
        return self.Context(ranks)


class ListsWhoEndsFirst(ChangedLauncher):
    """Returns results in the order in which ranks end."""

    class Context(ThreadLaunchContext):
        @override
        def results(self) -> list[Any]:
            self.join()
            return list(self._values.values())


@rejected_by("test_results_are_in_order_of_rank")
class TestListsWhoEndsFirst(BrokenLauncherSuite):
    config = backends.config(ListsWhoEndsFirst)


class TellsNobody(ChangedLauncher):
    """Lets the others run when one has failed."""

    class Context(ThreadLaunchContext):
        @override
        def stop(self, reason: BaseException | None = None) -> None:
            """Tell nobody."""


@rejected_by("test_a_failure_ends_the_others")
class TestTellsNobody(BrokenLauncherSuite):
    config = backends.config(TellsNobody)


class LeavesADescriptor(ThreadLauncher):
    """Never closes what it opens for a launch."""

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        os.eventfd(0)
        return super().start(ranks, daemon=daemon, start_method=start_method)


@rejected_by("test_nothing_is_left_behind", "test_one_rank")
class TestLeavesADescriptor(BrokenLauncherSuite):
    config = backends.config(LeavesADescriptor)


class ChangedProcessLauncher(ProcessLauncher):
    """Has its ranks in a context of another class."""

    Context: ClassVar[type[ProcessLaunchContext]] = ProcessLaunchContext

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        processes = started(ranks, self.config, self._serializer, "forkserver")
        return self.Context(ranks, processes, self._serializer, daemon=daemon)


class DoesNotKnowWhoDied(ChangedProcessLauncher):
    """Says that some rank died."""

    class Context(ProcessLaunchContext):
        @override
        def _lost(self, rank: RankProcess, end: Exit | None, why: str) -> BaseException:
            return RuntimeError("a rank died")


@rejected_by("test_a_rank_that_dies_is_named")
class TestDoesNotKnowWhoDied(BrokenLauncherSuite):
    config = isolated.config(DoesNotKnowWhoDied)
