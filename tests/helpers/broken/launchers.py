"""Broken launchers."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from typing_extensions import override

import pparallel_local
import pparallel_process
from broken.harness import Backends, rejected_by
from pparallel.errors import ConfigError, WorkerLostError
from pparallel.interfaces.launcher import LaunchContext, RankSpec, StartMethod
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime import upstream
from pparallel.runtime.processes import Exit
from pparallel.runtime.stopping import StopSignal
from pparallel.testing import LauncherSuite
from pparallel_local import ThreadLauncherConfig
from pparallel_local.thread_launcher import ThreadLaunchContext, ThreadLauncher
from pparallel_process import ProcessLauncherConfig
from pparallel_process.launcher.context import ProcessLaunchContext
from pparallel_process.launcher.process_launcher import ProcessLauncher
from pparallel_process.launcher.rank_process import RankProcess
from pparallel_process.launcher.starting import started

Hear = Callable[[Any], object]

backends = Backends(ThreadLauncherConfig, pparallel_local)
isolated = Backends(ProcessLauncherConfig, pparallel_process)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return [*backends.records, *isolated.records]


class BrokenLauncherSuite(LauncherSuite):
    """Loses patience soon: much of what it waits for never comes."""

    patience: ClassVar[float] = 0.5


class ChangedLauncher(ThreadLauncher):
    """Changes what the ranks run, or has them in a context of another class."""

    Context: ClassVar[type[ThreadLaunchContext]] = ThreadLaunchContext

    def changed(self, fn: Callable[..., object]) -> Callable[..., object]:
        return fn

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        refused = [each for each in ranks if each.env]
        super().start(refused, daemon=daemon, start_method=start_method)
        return self.Context([dataclasses.replace(each, fn=self.changed(each.fn)) for each in ranks])


# -- ranks and results -------------------------------------------------------------------------


class CountsFromOne(ChangedLauncher):
    """Numbers ranks from 1."""

    @override
    def changed(self, fn: Callable[..., object]) -> Callable[..., object]:
        return lambda rank, *args: fn(rank + 1, *args)


@rejected_by("test_each_rank_has_its_number_and_the_arguments", "test_one_rank")
class TestCountsFromOne(BrokenLauncherSuite):
    config = backends.config(CountsFromOne)


class PacksTheArguments(ChangedLauncher):
    """Passes the arguments as one."""

    @override
    def changed(self, fn: Callable[..., object]) -> Callable[..., object]:
        return lambda rank, *args: fn(rank, args)


@rejected_by("test_each_rank_has_its_number_and_the_arguments", "test_one_rank")
class TestPacksTheArguments(BrokenLauncherSuite):
    config = backends.config(PacksTheArguments)


class StartsARankAgain(ChangedLauncher):
    """Runs one rank twice, as if its first start had failed."""

    @override
    def changed(self, fn: Callable[..., object]) -> Callable[..., object]:
        def run(rank: int, *args: object) -> object:
            if rank == 1:
                fn(rank, *args)
            return fn(rank, *args)

        return run


@rejected_by("test_each_rank_runs_once")
class TestStartsARankAgain(BrokenLauncherSuite):
    config = backends.config(StartsARankAgain)


class RunsOneByOne(ChangedLauncher):
    """Lets a rank run when the one before it has ended."""

    @override
    def changed(self, fn: Callable[..., object]) -> Callable[..., object]:
        def run(rank: int, *args: object) -> object:
            with self._turn:
                return fn(rank, *args)

        return run

    @property
    def _turn(self) -> threading.Lock:
        return vars(self).setdefault("turn", threading.Lock())  # type: ignore[no-any-return]


@rejected_by("test_results_are_in_order_of_rank")
class TestRunsOneByOne(BrokenLauncherSuite):
    config = backends.config(RunsOneByOne)


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


class AcceptsNoRanks(ThreadLauncher):
    """Runs no ranks when asked to."""

    @override
    def spawn(  # type: ignore[override]
        self, fn: Any, args: Any = (), nprocs: int | None = None, **options: Any
    ) -> Any:
        return super().spawn(fn, args, nprocs, **options) if nprocs != 0 else []


@rejected_by("test_no_ranks_are_refused")
class TestAcceptsNoRanks(BrokenLauncherSuite):
    config = backends.config(AcceptsNoRanks)


class IgnoresTheEnvironment(ThreadLauncher):
    """Says nothing when a rank wants variables of its own."""

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        return ThreadLaunchContext(ranks)


@rejected_by("test_environment_is_refused")
class TestIgnoresTheEnvironment(BrokenLauncherSuite):
    config = backends.config(IgnoresTheEnvironment)


class SharesTheEnvironment(ThreadLauncher):
    """Sets the variables of one rank for all, and leaves them."""

    features = frozenset({"env"})

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        for each in ranks:
            os.environ.update(each.env)
        return ThreadLaunchContext(ranks)


@rejected_by("test_environment")
class TestSharesTheEnvironment(BrokenLauncherSuite):
    config = backends.config(SharesTheEnvironment)


class PlacesAnywhere(ThreadLauncher):
    """Declares ``resources``, and does not look at them."""

    features = frozenset({"resources"})


@rejected_by("test_resources_that_do_not_exist_are_refused")
class TestPlacesAnywhere(BrokenLauncherSuite):
    config = backends.config(PlacesAnywhere)


class InsistsOnResources(ThreadLauncher):
    """Refuses what it was told to ignore."""

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        for each in ranks:
            if each.resources:
                raise ConfigError(f"rank {each.rank} asks for {each.resources}")
        return super().start(ranks, daemon=daemon, start_method=start_method)


@rejected_by("test_resources_are_ignored")
class TestInsistsOnResources(BrokenLauncherSuite):
    config = backends.config(InsistsOnResources)


# -- failing -----------------------------------------------------------------------------------


class SwallowsFailures(ChangedLauncher):
    """Takes a rank that failed for one that returned None."""

    class Context(ThreadLaunchContext):
        @override
        def failed(self, rank: int, error: BaseException) -> None:
            self.succeeded(rank, None)


@rejected_by("test_the_first_failure_is_raised", "test_a_rank_that_exits_has_failed", hangs=True)
class TestSwallowsFailures(BrokenLauncherSuite):
    config = backends.config(SwallowsFailures)


class ExitsWell(ChangedLauncher):
    """Takes a rank that exits for one that has done its work."""

    class Context(ThreadLaunchContext):
        @override
        def failed(self, rank: int, error: BaseException) -> None:
            if isinstance(error, SystemExit):
                self.succeeded(rank, None)
            else:
                super().failed(rank, error)


@rejected_by("test_a_rank_that_exits_has_failed")
class TestExitsWell(BrokenLauncherSuite):
    config = backends.config(ExitsWell)


class IsInterruptedWell(ChangedLauncher):
    """Takes a rank that was interrupted for one that has done its work."""

    class Context(ThreadLaunchContext):
        @override
        def failed(self, rank: int, error: BaseException) -> None:
            if isinstance(error, KeyboardInterrupt):
                self.succeeded(rank, None)
            else:
                super().failed(rank, error)


@rejected_by("test_a_rank_that_exits_has_failed")
class TestIsInterruptedWell(BrokenLauncherSuite):
    config = backends.config(IsInterruptedWell)


class TellsNobody(ChangedLauncher):
    """Lets the others run when one has failed."""

    class Context(ThreadLaunchContext):
        @override
        def stop(self, reason: BaseException | None = None) -> None:
            """Tell nobody."""


@rejected_by("test_a_failure_ends_the_others")
class TestTellsNobody(BrokenLauncherSuite):
    config = backends.config(TellsNobody)


class RaisesTheLastFailure(ChangedLauncher):
    """Raises what a rank made of its being ended."""

    class Context(ThreadLaunchContext):
        @property
        @override
        def failure(self) -> BaseException | None:
            return self._failures[-1] if self._failures else None


@rejected_by("test_the_first_failure_is_raised")
class TestRaisesTheLastFailure(BrokenLauncherSuite):
    config = backends.config(RaisesTheLastFailure)


class RaisesAConsequence(ChangedLauncher):
    """Raises whatever failed first."""

    class Context(ThreadLaunchContext):
        @property
        @override
        def failure(self) -> BaseException | None:
            return self._failures[0] if self._failures else None


@rejected_by("test_a_consequence_is_not_the_failure")
class TestRaisesAConsequence(BrokenLauncherSuite):
    config = backends.config(RaisesAConsequence)


class LosesTheTraceback(ChangedLauncher):
    """Raises a copy of what a rank raised."""

    class Context(ThreadLaunchContext):
        @override
        def failed(self, rank: int, error: BaseException) -> None:
            super().failed(rank, copy.copy(error))


@rejected_by("test_a_failure_shows_its_traceback")
class TestLosesTheTraceback(BrokenLauncherSuite):
    config = backends.config(LosesTheTraceback)


class FailsOnce(ChangedLauncher):
    """Raises a failure at the first join alone."""

    class Context(ThreadLaunchContext):
        @override
        def join(self, timeout: float | None = None) -> bool:
            try:
                return super().join(timeout)
            finally:
                self._failures.clear()


@rejected_by("test_a_failure_ends_the_others")
class TestFailsOnce(BrokenLauncherSuite):
    config = backends.config(FailsOnce)


# -- hearing -----------------------------------------------------------------------------------


class ChangedHearing(ThreadLauncher):
    """Changes who hears what ranks tell."""

    def changed(self, hear: Hear, ranks: Sequence[RankSpec]) -> Hear:
        return hear

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        heard = [
            dataclasses.replace(each, hear=each.hear and self.changed(each.hear, ranks))
            for each in ranks
        ]
        return super().start(heard, daemon=daemon, start_method=start_method)


class ForgetsWhatItHears(ChangedHearing):
    """Loses one thing in a hundred."""

    @override
    def changed(self, hear: Hear, ranks: Sequence[RankSpec]) -> Hear:
        numbers = itertools.count(1)
        return lambda told: next(numbers) % 100 and hear(told)


@rejected_by("test_what_ranks_tell_is_heard")
class TestForgetsWhatItHears(BrokenLauncherSuite):
    config = backends.config(ForgetsWhatItHears)


class HearsTheLastFirst(ChangedHearing):
    """Lets two things change places now and then."""

    @override
    def changed(self, hear: Hear, ranks: Sequence[RankSpec]) -> Hear:
        kept: list[object] = []

        def change_places(told: object) -> None:
            if told == (0, 60):
                kept.append(told)
                return
            hear(told)
            while kept:
                hear(kept.pop())

        return change_places


@rejected_by("test_what_ranks_tell_is_heard")
class TestHearsTheLastFirst(BrokenLauncherSuite):
    config = backends.config(HearsTheLastFirst)


class MistakesWhoSpeaks(ChangedHearing):
    """Takes what any rank tells for the first one's."""

    @override
    def changed(self, hear: Hear, ranks: Sequence[RankSpec]) -> Hear:
        return ranks[0].hear or hear


@rejected_by("test_what_ranks_tell_is_heard")
class TestMistakesWhoSpeaks(BrokenLauncherSuite):
    config = backends.config(MistakesWhoSpeaks)


class FailsWithItsListener(ChangedLauncher):
    """Raises in the rank what a listener raises."""

    class Context(ThreadLaunchContext):
        @override
        def _run(self, signal: StopSignal, spec: RankSpec) -> None:
            def run(rank: int, *args: object) -> object:
                with upstream.heard_by(spec.hear):
                    return spec.fn(rank, *args)

            super()._run(signal, dataclasses.replace(spec, fn=run))


@rejected_by("test_a_listener_that_fails")
class TestFailsWithItsListener(BrokenLauncherSuite):
    config = backends.config(FailsWithItsListener)


# -- joining and ending ------------------------------------------------------------------------


class JoinsEarly(ChangedLauncher):
    """Says at the end of the time-out that all have returned."""

    class Context(ThreadLaunchContext):
        @override
        def join(self, timeout: float | None = None) -> bool:
            return super().join(timeout) or timeout is not None


@rejected_by("test_join_with_a_timeout", "test_terminate")
class TestJoinsEarly(BrokenLauncherSuite):
    config = backends.config(JoinsEarly)


class IgnoresTheTimeout(ChangedLauncher):
    """Waits for all ranks, however long it may."""

    class Context(ThreadLaunchContext):
        @override
        def join(self, timeout: float | None = None) -> bool:
            return super().join()


@rejected_by("test_join_with_a_timeout")
class TestIgnoresTheTimeout(BrokenLauncherSuite):
    config = backends.config(IgnoresTheTimeout)


class WakesOneJoiner(ChangedLauncher):
    """Forgets that several threads may join."""

    class Context(ThreadLaunchContext):
        @override
        def succeeded(self, rank: int, value: object) -> None:
            with self._changed:
                self._values[rank] = value
                self._pending.discard(rank)
                self._changed.notify()


@rejected_by("test_any_thread_may_join")
class TestWakesOneJoiner(BrokenLauncherSuite):
    config = backends.config(WakesOneJoiner)


class TerminatesInName(ChangedLauncher):
    """Does nothing when told to end the ranks."""

    class Context(ThreadLaunchContext):
        @override
        def terminate(self, reason: BaseException | None = None) -> None:
            """Do nothing."""


@rejected_by("test_terminate")
class TestTerminatesInName(BrokenLauncherSuite):
    config = backends.config(TerminatesInName)


class TerminatesOnce(ChangedLauncher):
    """Cannot be told twice to end the ranks."""

    class Context(ThreadLaunchContext):
        @override
        def stop(self, reason: BaseException | None = None) -> None:
            super().stop(reason)
            del self._signals


@rejected_by("test_terminate")
class TestTerminatesOnce(BrokenLauncherSuite):
    config = backends.config(TerminatesOnce)


class WaitsForTheStubborn(ChangedLauncher):
    """Waits for whom it told to end, however long they take."""

    class Context(ThreadLaunchContext):
        @override
        def kill(self) -> None:
            self.reap()


@rejected_by("test_a_rank_that_does_not_stop_is_not_waited_for", hangs=True)
class TestWaitsForTheStubborn(BrokenLauncherSuite):
    config = backends.config(WaitsForTheStubborn)


class OnlySaysIsolated(ThreadLauncher):
    """Declares ``isolated``, and cannot end a rank by force."""

    features = frozenset({"isolated"})


@rejected_by("test_a_rank_that_does_not_stop_is_ended")
class TestOnlySaysIsolated(BrokenLauncherSuite):
    config = backends.config(OnlySaysIsolated)


class LeavesAThread(ChangedLauncher):
    """Watches over each launch for ever."""

    class Context(ThreadLaunchContext):
        def __init__(self, ranks: Sequence[RankSpec]) -> None:
            super().__init__(ranks)
            threading.Thread(target=threading.Event().wait, daemon=True).start()


@rejected_by("test_nothing_is_left_behind", "test_one_rank")
class TestLeavesAThread(BrokenLauncherSuite):
    config = backends.config(LeavesAThread)


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


# -- processes ---------------------------------------------------------------------------------


class ChangedProcessLauncher(ProcessLauncher):
    """Has its ranks in a context of another class."""

    Context: ClassVar[type[ProcessLaunchContext]] = ProcessLaunchContext

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        processes = started(ranks, self.config, self._serializer, "forkserver")
        return self.Context(ranks, processes, self._serializer, daemon=daemon)


class TakesQuietForWell(ChangedProcessLauncher):
    """Takes a rank whose process ended with 0 for one that returned None."""

    class Context(ProcessLaunchContext):
        @override
        def _lost(self, rank: RankProcess, end: Exit | None, why: str) -> BaseException:
            if end is not None and end.code == 0:
                self.succeeded(rank.spec.rank, None)
            return super()._lost(rank, end, why)

        @override
        def failed(self, rank: int, error: BaseException) -> None:
            if rank in self._pending:
                super().failed(rank, error)


@rejected_by("test_a_rank_that_dies_is_named", hangs=True)
class TestTakesQuietForWell(BrokenLauncherSuite):
    config = isolated.config(TakesQuietForWell)


class DoesNotKnowWhoDied(ChangedProcessLauncher):
    """Says that some rank died."""

    class Context(ProcessLaunchContext):
        @override
        def _lost(self, rank: RankProcess, end: Exit | None, why: str) -> BaseException:
            return RuntimeError("a rank died")


@rejected_by("test_a_rank_that_dies_is_named")
class TestDoesNotKnowWhoDied(BrokenLauncherSuite):
    config = isolated.config(DoesNotKnowWhoDied)


class MissesDeaths(ChangedProcessLauncher):
    """Waits for ever for the word of a rank that died."""

    class Context(ProcessLaunchContext):
        @override
        def _fail(self, rank: RankProcess, error: BaseException) -> None:
            if not isinstance(error, WorkerLostError):
                super()._fail(rank, error)


@rejected_by("test_a_rank_that_dies_is_named", hangs=True)
class TestMissesDeaths(BrokenLauncherSuite):
    config = isolated.config(MissesDeaths)


class KillsNobody(ChangedProcessLauncher):
    """Leaves ranks that do not stop when told."""

    class Context(ProcessLaunchContext):
        @override
        def kill(self) -> None:
            """Do nothing."""


@rejected_by("test_a_rank_that_does_not_stop_is_ended")
class TestKillsNobody(BrokenLauncherSuite):
    config = isolated.config(KillsNobody)
