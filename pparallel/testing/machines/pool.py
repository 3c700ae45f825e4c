"""The machine of pools."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from typing_extensions import override

from pparallel.builder import build as build_component
from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Pool, PoolConfig, PoolResult
from pparallel.registry import default_registry
from pparallel.testing.gate import Gate
from pparallel.testing.machines.machine import LIMIT, Machine
from pparallel.testing.machines.notes import check_starts
from pparallel.testing.machines.outcomes import Call, Doubts, Stream, Task
from pparallel.testing.machines.tasks import Deed, hold, own_pid, perform, perform_item
from pparallel.testing.patience import until_gone
from pparallel.testing.suite import changed

MOST_TASKS = 12  #: of one call
MOST_CALLS = 6  #: that are made at once
FEWEST_TASKS = 12  #: that a pool is given before it ends

_common: list[Deed] = ["return"] * 9  # a death throws doubt on all that runs at the same time
_deeds: st.SearchStrategy[Deed] = st.sampled_from(
    [*_common, "refuse", "refuse", "exit", "unsendable", "die"]
)
_which = st.integers(0, 63)
_seldom = st.integers(0, 3)  #: 0: do it, so that other operations come first


# What a precondition asks must follow from the operations so far, not from how far tasks are.
def _takes(self: PoolMachine) -> bool:
    return self.phase == "open"


def _flows(self: PoolMachine) -> bool:
    return self.gate is None


class PoolMachine(Machine):
    """Hands tasks over in all ways, cancels, holds and kills workers, and ends the pool.

    Each task notes in a file that it was started. What comes of it is known beforehand, but for
    what happens at the same time: a worker's death may befall tasks around it, and ``terminate``
    those that have not ended. Subclasses are made by :func:`pool_machine`.

    Attributes:
        config: the pool's config.
        build: makes a pool of a config.
        features: those that the backend declares.
    """

    config: ClassVar[PoolConfig]
    build: ClassVar[Callable[..., Pool]] = staticmethod(build_component)
    features: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="pparallel-machine-")
        self.notes = Path(self.folder.name, "notes")
        self.phase = "new"
        self.calls: list[Call] = []
        self.streams: list[Stream] = []
        self.gates: list[Gate] = []
        self.gate: Gate | None = None
        self.count = 0

    @initialize(size=st.integers(1, 3))
    def begin(self, size: int) -> None:
        """Open a pool."""
        self.pool: Pool = type(self).build(changed(self.config, size=size))
        self.pool.open()
        self.phase = "open"

    # -- hand over ----------------------------------------------------------------------------

    @precondition(_takes)
    @rule(
        way=st.sampled_from(["submit", "apply_async", "executor"]),
        deeds=st.lists(_deeds, min_size=1, max_size=MOST_CALLS),
    )
    def call(self, way: str, deeds: list[Deed]) -> None:
        """Hand over tasks one by one."""
        for task in self._tasks(deeds):
            arguments = (self.notes, task.deed, task.number)
            called_back = self._call_back() if way == "apply_async" else None
            if called_back is not None:
                tell, fail = (each.append for each in called_back)
                handle = self.pool.apply_async(perform, arguments, None, tell, fail)
            elif way == "submit":
                handle = self.pool.submit(perform, *arguments)
            else:
                future = self.pool.as_executor().submit(perform, *arguments)
                assert isinstance(future, PoolResult)
                handle = future
            self._handed_over(handle, (task,), called_back, mapped=False)

    @precondition(_takes)
    @rule(deeds=st.lists(_deeds, max_size=MOST_TASKS), star=st.booleans(), chunksize=_which)
    def map(self, deeds: list[Deed], star: bool, chunksize: int) -> None:
        """Hand over several tasks whose results are wanted together."""
        if "die" in deeds:  # as the only one that fails: the others would hide when it dies
            last = deeds.index("die")
            deeds = ["die" if n == last else "return" for n in range(len(deeds))]
        tasks = self._tasks(deeds)
        items = [(self.notes, each.deed, each.number) for each in tasks]
        called_back = self._call_back()
        tell, fail = (each.append for each in called_back)
        size = chunksize or None
        if star:
            handle = self.pool.starmap_async(perform, items, size, tell, fail)
        else:
            handle = self.pool.map_async(perform_item, items, size, tell, fail)
        self._handed_over(handle, tasks, called_back, mapped=True)

    @precondition(_takes)
    @rule(deeds=st.lists(_deeds, max_size=MOST_TASKS), ordered=st.booleans())
    def imap(self, deeds: list[Deed], ordered: bool) -> None:
        """Hand over several tasks whose results are taken one by one."""
        tasks = self._tasks(deeds)
        items = ((self.notes, each.deed, each.number) for each in tasks)
        stream = self.pool.imap if ordered else self.pool.imap_unordered
        doubts = self._doubts(tasks)
        self.streams.append(Stream(stream(perform_item, items), list(tasks), ordered, doubts))

    @precondition(lambda self: _takes(self) and _flows(self))
    @rule(count=st.integers(0, MOST_TASKS))
    def map_and_wait(self, count: int) -> None:
        """Have several tasks done, and wait for them."""
        tasks = self._tasks(["return"] * count)
        doubts = self._doubts(tasks)
        items = [(self.notes, each.deed, each.number) for each in tasks]
        if not doubts.death:
            assert self.pool.map(perform_item, items) == [2 * each.number for each in tasks]

    # -- cancel and wait ----------------------------------------------------------------------

    @precondition(lambda self: self.calls)
    @rule(which=_which, count=st.integers(1, MOST_CALLS))
    def cancel(self, which: int, count: int) -> None:
        """Cancel calls, which succeeds unless they have begun."""
        last = which % len(self.calls) + 1
        for call in self.calls[-last:][:count]:
            self._cancel(call)

    @precondition(lambda self: self.calls and _flows(self))
    @rule(which=_which)
    def wait(self, which: int) -> None:
        """Wait for a call, and look at its outcome."""
        self.calls[-1 - which % len(self.calls)].check()

    @precondition(lambda self: self.streams and _flows(self))
    @rule(which=_which, count=st.integers(1, MOST_TASKS))
    def take(self, which: int, count: int) -> None:
        """Take results of a stream."""
        stream = self.streams[-1 - which % len(self.streams)]
        for _ in range(count):
            if not stream.is_over:
                stream.take()

    # -- workers ------------------------------------------------------------------------------

    @precondition(lambda self: "parallel" in self.features and _takes(self) and _flows(self))
    @rule()
    def hold_all_workers(self) -> None:
        """Give each worker a task that waits at a gate."""
        self._settle_deaths()
        folder = Path(self.folder.name, f"gate-{len(self.gates)}")
        folder.mkdir()
        gate = Gate(folder)
        self.gates.append(gate)
        for _ in range(self.pool.size()):
            (task,) = self._tasks(["hold"])
            handle = self.pool.submit(hold, self.notes, gate, task.number)
            self._handed_over(handle, (task,), None, mapped=False)
        gate.arrived(self.pool.size())
        self.gate = gate

    @precondition(lambda self: self.gate is not None)
    @rule()
    def let_all_go(self) -> None:
        """Open the gate."""
        self._open_gate()

    @precondition(lambda self: "isolated" in self.features and _takes(self) and _flows(self))
    @rule()
    def kill_an_idle_worker(self) -> None:
        """Kill a worker while nothing runs: it costs no task."""
        self._settle()
        pid = self.pool.apply(own_pid)
        os.kill(pid, signal.SIGKILL)
        self.map_and_wait(MOST_TASKS)
        until_gone(pid)

    # -- the end ------------------------------------------------------------------------------

    @precondition(_takes)
    @rule()
    def join_what_is_open(self) -> None:
        """Join too early."""
        with pytest.raises(ValueError, match="close"):
            self.pool.join()

    @precondition(lambda self: _takes(self) and self.count >= FEWEST_TASKS)
    @rule(unless=_seldom)
    def close(self, unless: int) -> None:
        """Take no more calls."""
        if unless:
            return
        self.pool.close()
        self.phase = "closed"

    @precondition(lambda self: self.phase == "closed" and _flows(self))
    @rule()
    def join(self) -> None:
        """Wait until all is done."""
        for stream in self.streams:
            stream.doubts.end = True
        self._join()
        for call in self.calls:
            assert call.handle.done(), f"{call.tasks} had not ended when the pool was joined"
        self.phase = "ended"

    @precondition(lambda self: self.phase != "ended" and self.count >= FEWEST_TASKS)
    @rule(unless=_seldom)
    def terminate(self, unless: int) -> None:
        """End the pool at once: those who wait for it wake."""
        if unless:
            return
        for each in self._unfinished():
            each.doubts.end = True
        self.pool.terminate()
        self.phase = "ended"
        for call in self.calls:
            call.check()
        self._open_gate()
        self._join()

    @precondition(lambda self: self.phase in ("closed", "ended"))
    @rule(end=st.booleans())
    def use_what_is_closed(self, end: bool) -> None:
        """Call what takes no calls, and end it once more."""
        pool = self.pool
        refused: list[Callable[[], object]] = [
            lambda: pool.submit(own_pid),
            lambda: pool.apply(own_pid),
            lambda: pool.map(perform_item, []),
            lambda: pool.starmap_async(perform, [(self.notes, "return", 0)]),
            lambda: pool.imap(perform_item, []),
            lambda: pool.as_executor().submit(own_pid),
        ]
        for each in refused:
            with pytest.raises(ClosedError):
                each()
        pool.close()
        if end and self.phase == "ended":
            pool.terminate()
            self._join()

    @override
    def end(self, *, check: bool) -> None:
        try:
            if self.phase != "new":
                self._end(check=check)
        finally:
            for each in self.gates:
                each.close()
            self.folder.cleanup()

    # -- inside -------------------------------------------------------------------------------

    def _tasks(self, deeds: list[Deed]) -> tuple[Task, ...]:
        """Return tasks with the next numbers; what the backend does not promise is left out."""
        unfit = set[str]()
        if "isolated" not in self.features:
            unfit.add("die")
        if "references" in self.features:
            unfit.add("unsendable")
        first = self.count + 1
        self.count += len(deeds)
        fit: list[Deed] = ["return" if each in unfit else each for each in deeds]
        return tuple(Task(each, number) for number, each in enumerate(fit, first))

    def _call_back(self) -> tuple[list[Any], list[Any]]:
        return [], []

    def _unfinished(self) -> list[Call | Stream]:
        """Return what may still be at work."""
        return [*(each for each in self.calls if not each.handle.done()), *self.streams]

    def _deaths(self) -> bool:
        """Return whether a worker may die any time."""
        return any(each.holds_a_death() for each in self._unfinished())

    def _doubts(self, tasks: tuple[Task, ...]) -> Doubts:
        """Return what may befall *tasks*, and let what they may do befall others."""
        kills = any(each.deed == "die" for each in tasks)
        for each in self._unfinished() if kills else ():
            each.doubts.death = True
        return Doubts(death=self._deaths() or (kills and len(tasks) > 1))

    def _handed_over(
        self,
        handle: PoolResult[Any],
        tasks: tuple[Task, ...],
        called_back: tuple[list[Any], list[Any]] | None,
        *,
        mapped: bool,
    ) -> None:
        doubts = self._doubts(tasks)
        call = Call(tasks, mapped, handle, called_back, doubts, self.gate)
        handle.add_done_callback(call.told.append)
        self.calls.append(call)

    def _cancel(self, call: Call) -> None:
        was_done, deeds = call.handle.done(), {each.deed for each in call.tasks}
        cancelled = call.handle.cancel()
        if was_done:
            assert cancelled is call.cancelled, "what had ended was cancelled"
        elif self.gate is not None and call.behind is self.gate and not self._sends_ahead():
            assert cancelled, f"{call.tasks} cannot be cancelled, and no worker is free"
        elif self.gate is not None and deeds == {"hold"}:
            assert not cancelled, "a running task was cancelled"
        call.cancelled = cancelled
        if cancelled:
            call.check()

    def _sends_ahead(self) -> bool:
        """Return whether a busy worker may have been sent what comes next, which has begun then."""
        return "isolated" in self.features

    def _settle(self) -> None:
        """Wait until nothing runs."""
        for call in self.calls:
            call.check()
        for stream in self.streams:
            while not stream.is_over:
                stream.take()

    def _settle_deaths(self) -> None:
        """Wait until no worker is about to die."""
        for call in self.calls:
            if call.holds_a_death():
                call.check()
        for stream in self.streams:
            while stream.holds_a_death() and not stream.is_over:
                stream.take()

    def _open_gate(self) -> None:
        if self.gate is not None:
            self.gate.open()
            self.gate = None

    def _join(self) -> None:
        """Join, and fail if that does not end."""
        joining = threading.Thread(target=self.pool.join, name="machine-join", daemon=True)
        joining.start()
        joining.join(LIMIT)
        assert not joining.is_alive(), f"join() did not end within {LIMIT} s"

    def _end(self, *, check: bool) -> None:
        self._open_gate()
        if not check:
            self.pool.terminate()
        self.pool.close()
        self._join()
        if check:
            for call in self.calls:
                call.check()
                call.check_told()
            check_starts(self.notes, self.pool.size(), self.calls, self.streams)


def pool_machine(
    config: PoolConfig,
    *,
    build: Callable[..., Pool] = build_component,
    features: frozenset[str] | None = None,
) -> type[PoolMachine]:
    """Return a machine for the pool of *config*, for :func:`run_machine`.

    Each sequence has a pool of its own, of one to three workers.

    Args:
        config: the pool's config.
        build: makes a pool of a config; for a backend that is not registered.
        features: those of the pool; by default those that its backend declares.
    """
    if features is None:
        features = default_registry().find("pool", config.backend).features
    attributes = {
        "config": config,
        "build": staticmethod(build),
        "features": features,
        "__doc__": PoolMachine.__doc__,
    }
    return type("PoolMachine", (PoolMachine,), attributes)
