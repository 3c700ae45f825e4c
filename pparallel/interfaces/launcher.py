"""Launcher: run a function once for each rank, and end them together."""

from __future__ import annotations

import importlib.util
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, overload

from typing_extensions import override

from pparallel.config import BackendConfig
from pparallel.errors import PeerLostError, SerializationError, is_consequence
from pparallel.interfaces.resource import Resource

R = TypeVar("R")
StartMethod = Literal["spawn", "fork", "forkserver"]

GRACE = 1.5  #: seconds that ranks are given to end by themselves once they were told to stop


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank to start.

    Attributes:
        rank: its number, from 0.
        fn: what it runs, as ``fn(rank, *args)``.
        args: what follows the rank.
        env: environment variables of this rank alone.
        resources: what the rank asks of a launcher that chooses where it runs; others ignore it.
        name: what the rank is called, as the member of a job is; empty: by its number.
        hear: called in the launching process, in any thread, with each object that the rank hands
            to ``pparallel.runtime.stopping.upstream()``; ``None``: nobody wants to hear.
        modules: what the rank is going to import; a launcher may do so once for all ranks.
    """

    rank: int
    fn: Callable[..., object]
    args: tuple[object, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, object] = field(default_factory=dict)
    name: str = ""
    hear: Callable[[Any], object] | None = None
    modules: tuple[str, ...] = ()

    def run(self) -> object:
        """Call the function."""
        return self.fn(self.rank, *self.args)


class LaunchContext(ABC):
    """Ranks that were started: what they returned, and how they end.

    A backend gives :attr:`processes`, :meth:`pids`, :meth:`stop` and :meth:`kill`, and calls
    :meth:`succeeded` or :meth:`failed` once for each rank, from any thread. Any thread may join.

    Attributes:
        grace: seconds that ranks are given to end by themselves once they were told to stop.
    """

    grace: float = GRACE

    def __init__(self, ranks: Sequence[RankSpec]) -> None:
        self._pending = {each.rank for each in ranks}
        self._values: dict[int, object] = {}
        self._failures: dict[int, BaseException] = {}  # by rank, the first to fail first
        self._changed = threading.Condition()

    @property
    @abstractmethod
    def processes(self) -> Sequence[Any]:
        """What runs the ranks, by rank: process or thread objects."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Return the process id of each rank."""

    @abstractmethod
    def stop(self, reason: BaseException | None = None) -> None:
        """Tell all ranks to end, because of *reason*; does not wait, may be called twice."""

    @abstractmethod
    def kill(self) -> None:
        """End by force what still runs, where that is possible; does not wait."""

    def reap(self) -> None:
        """Wait for what ran the ranks, all of which have reported."""
        for each in self.processes:
            each.join()

    def succeeded(self, rank: int, value: object) -> None:
        """Report what *rank* returned."""
        with self._changed:
            self._values[rank] = value
            self._pending.discard(rank)
            self._changed.notify_all()

    def failed(self, rank: int, error: BaseException) -> None:
        """Report that *rank* ended with *error*.

        ``SystemExit``, ``KeyboardInterrupt`` and their like become a ``RuntimeError``, so that
        raising it at the launching side neither ends that process nor looks like success.
        """
        if not isinstance(error, Exception):
            wrapped = RuntimeError(f"rank {rank} was ended by {error!r}")
            wrapped.__cause__ = error
            error = wrapped
        else:
            error.add_note(f"raised in rank {rank}")
        with self._changed:
            self._failures[rank] = error
            self._pending.discard(rank)
            self._changed.notify_all()

    @property
    def failure(self) -> BaseException | None:
        """The first failure so far; one that only follows from another does not count as it."""
        with self._changed:
            return min(self._failures.values(), key=_remoteness, default=None)

    @property
    def failed_rank(self) -> int | None:
        """The rank of :attr:`failure`; ``None`` while there is none."""
        failure = self.failure
        with self._changed:
            return next((n for n, error in self._failures.items() if error is failure), None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until all ranks have returned.

        Returns:
            True when they have, False when *timeout* seconds have passed and some still run.

        Raises:
            Exception: what the first rank to fail raised, after the others were ended. An
                interrupt of the joining thread ends the ranks too.
        """
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._failures or not self._pending, timeout)
                # A rank that only follows another may end first; to stop that other now would
                # keep it from telling the rest why the job ends.
                if self._failures:
                    self._changed.wait_for(self._knows_the_cause, GRACE)
        except BaseException as error:
            self.terminate(error)
            raise
        if (first := self.failure) is not None:
            self.terminate(first)
            later = self.failure
            raise first if later is None else later
        if self._pending:
            return False
        self.reap()
        return True

    def _knows_the_cause(self) -> bool:
        return not self._pending or any(_remoteness(each) == 0 for each in self._failures.values())

    def results(self) -> list[Any]:
        """Wait for all ranks and return what they returned, by rank; raises as :meth:`join`."""
        self.join()
        return [self._values[rank] for rank in sorted(self._values)]

    def terminate(self, reason: BaseException | None = None) -> None:
        """End the ranks: tell them, give them a moment, then use force where that is possible."""
        self.stop(reason)
        ended = False
        try:
            with self._changed:
                ended = self._changed.wait_for(lambda: not self._pending, self.grace)
        finally:  # an interrupt of this wait must not let ranks outlive it
            if not ended:
                self.kill()
        if ended:
            self.reap()


class Launcher(Resource):
    """Runs a function once for each rank.

    Guarantees:
        - Each rank runs once (``LauncherSuite.test_each_rank_runs_once``), all at the same time,
          and results come back by rank, whatever order the ranks end in
          (``test_results_are_in_order_of_rank``).
        - A rank is handed its number, from 0, and the arguments
          (``LauncherSuite.test_each_rank_has_its_number_and_the_arguments``, ``test_one_rank``);
          there are as many as devices unless a number is given
          (``test_as_many_ranks_as_devices``), and no fewer than one
          (``test_no_ranks_are_refused``).
        - A failure ends the other ranks and is raised by each join
          (``LauncherSuite.test_a_failure_ends_the_others``), with the rank's traceback, its own
          or that of its cause (``test_a_failure_shows_its_traceback``).
        - Of several failures the first is raised
          (``LauncherSuite.test_the_first_failure_is_raised``); one that only follows from another
          does not count (``test_a_consequence_is_not_the_failure``).
        - A rank that calls ``sys.exit`` or raises ``KeyboardInterrupt`` has failed
          (``LauncherSuite.test_a_rank_that_exits_has_failed``).
        - A context joins, with a time-out too, from any thread
          (``LauncherSuite.test_join_with_a_timeout``, ``test_any_thread_may_join``), and ends
          ranks (``test_terminate``). Ranks that were told to stop are waited for at most 1.5
          seconds (``test_a_rank_that_does_not_stop_is_not_waited_for``).
        - No thread, process or descriptor outlives the ranks
          (``LauncherSuite.test_nothing_is_left_behind``).
        - The members of a job are ranks (``LauncherSuite.test_ranks_of_a_job``).

    Features:
        - ``env``: ranks take environment variables of their own
          (``LauncherSuite.test_environment``); without it they are refused
          (``LauncherSuite.test_environment_is_refused``).
        - ``resources``: ranks are placed by what they ask for, and what does not exist is refused
          (``LauncherSuite.test_resources_that_do_not_exist_are_refused``); without it what they
          ask for is ignored (``LauncherSuite.test_resources_are_ignored``).
        - ``hears``: what ranks tell is heard where they were launched, in the order in which each
          tells it and before it is known to have ended
          (``LauncherSuite.test_what_ranks_tell_is_heard``), and a listener that fails disturbs
          nobody (``test_a_listener_that_fails``).
        - ``isolated``: ranks that do not stop when told are ended by force
          (``LauncherSuite.test_a_rank_that_does_not_stop_is_ended``), and one whose process dies,
          however and with whatever exit code, has failed: the error names the rank, its process
          and what ended it (``test_a_rank_that_dies_is_named``).
    """

    @override
    def open(self) -> None:
        """Acquire nothing: what a launch needs lives as long as its context."""

    @override
    def close(self) -> None:
        """Release nothing."""

    @abstractmethod
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        """Start *ranks* and return without waiting for them.

        Args:
            ranks: one for each rank, in order.
            daemon: whether processes are daemonic: the program does not wait for them as it ends,
                and takes them along; launchers of anything else ignore it.
            start_method: how processes start; launchers of anything else ignore it.

        Raises:
            ConfigError: the launcher cannot give a rank what its specification asks for.
        """

    @overload
    def spawn(
        self,
        fn: Callable[..., R],
        args: Sequence[object] = (),
        nprocs: int | None = None,
        join: Literal[True] = True,
        daemon: bool = False,
        start_method: StartMethod = "spawn",
    ) -> list[R]: ...

    @overload
    def spawn(
        self,
        fn: Callable[..., R],
        args: Sequence[object] = (),
        nprocs: int | None = None,
        *,
        join: Literal[False],
        daemon: bool = False,
        start_method: StartMethod = "spawn",
    ) -> LaunchContext: ...

    @overload
    def spawn(
        self,
        fn: Callable[..., R],
        args: Sequence[object] = (),
        nprocs: int | None = None,
        join: bool = True,
        daemon: bool = False,
        start_method: StartMethod = "spawn",
    ) -> list[R] | LaunchContext: ...

    def spawn(
        self,
        fn: Callable[..., R],
        args: Sequence[object] = (),
        nprocs: int | None = None,
        join: bool = True,
        daemon: bool = False,
        start_method: StartMethod = "spawn",
    ) -> list[R] | LaunchContext:
        """Run ``fn(rank, *args)`` in *nprocs* ranks.

        Args:
            fn: what each rank runs.
            args: what follows the rank in the call.
            nprocs: how many ranks; ``None`` is the number of devices, at least one.
            join: wait, and return what the ranks returned; else return at once.
            daemon: whether processes are daemonic.
            start_method: how processes start.

        Returns:
            The results by rank, or, without *join*, a context to join or end the ranks with.

        Raises:
            ValueError: *nprocs* is less than one.
            Exception: with *join*, the first failure of a rank.
        """
        count = _device_count() if nprocs is None else nprocs
        if count < 1:
            raise ValueError(f"nprocs must be at least 1, not {count}")
        ranks = [RankSpec(rank, fn, tuple(args)) for rank in range(count)]
        try:
            context = self.start(ranks, daemon=daemon, start_method=start_method)
        except SerializationError as error:
            name = getattr(fn, "__qualname__", type(fn).__qualname__)
            error.locate({"[1]": "args", "[0]": name})
            raise
        return context.results() if join else context


class LauncherConfig(BackendConfig[Launcher], frozen=True):
    """What every launcher is told: nothing but its name."""

    interface: ClassVar[str] = "launcher"
    default_backend: ClassVar[str] = "thread"
    synonyms: ClassVar[Mapping[str, str]] = {"mp_context": "start_method", "method": "start_method"}


def _device_count() -> int:
    """Return the number of accelerators, at least one; torch is asked only if installed."""
    if importlib.util.find_spec("torch") is None:
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def _remoteness(error: BaseException) -> int:
    """Return how far *error* is from what went wrong: who lost a member knows that one failed."""
    return 2 if is_consequence(error) else 1 if isinstance(error, PeerLostError) else 0
