"""Clients that are threads of this process."""

from __future__ import annotations

import _weakrefset
import linecache
import random
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

from typing_extensions import override

import pparallel
from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.testing.linearizability.clients import Clients
from pparallel.testing.linearizability.journal import Journal
from pparallel.testing.linearizability.operation import Operation
from pparallel.testing.linearizability.performing import Wrap, perform
from pparallel.testing.linearizability.plan import Act, Fault, Part, Plan
from pparallel.testing.linearizability.script import Step
from pparallel.testing.threads import switching_often

PATIENCE = 60.0  #: seconds after which a thread that has not ended will not
YIELDS = 0.02  #: how often a thread lets others run before it goes on with a line
LINE = 1e-5  #: seconds of a fault's delay that are one line of Python
#: files without faults: an exception in a callback of a weak reference is printed, not raised
_UNTRACED = frozenset({__file__, _weakrefset.__file__, weakref.__file__})


class ClientThreads(Clients):
    """Clients that are threads, and use one server.

    A thread cannot be killed. What comes nearest is an exception in the middle of what it does, as
    Ctrl-C raises it in the main thread: it is raised before some line of Python, whatever code that
    belongs to, and ends the client. A client is paused before some line too, and keeps the locks
    that it holds. So that threads take turns within operations, each lets others run before one
    line in fifty. The sources must be there, and code in C is neither ended nor paused.

    Args:
        config: the server's config.
        wrap: puts a fault around the server.
    """

    def __init__(self, config: OrderedServerConfig, wrap: Wrap | None = None) -> None:
        super().__init__()
        self.possible = {"kill", "pause"}
        self.depth = config.version_depth
        self._opened = pparallel.build(config)
        self._opened.open()
        self._server: OrderedServer = wrap(self._opened) if wrap else self._opened

    @override
    def run(self, plan: Plan) -> list[Operation]:
        return [each for act in plan.acts for each in self._perform(act)]

    def _perform(self, act: Act) -> list[Operation]:
        ready = threading.Barrier(len(act.parts))
        threads = [_Thread(self._server, part, act.faults, ready) for part in act.parts]
        with switching_often():
            for each in threads:
                each.start()
            end = time.monotonic() + PATIENCE
            for each in threads:
                each.join(max(0.0, end - time.monotonic()))
        for each in threads:
            assert not each.is_alive(), f"{each.name} did not end: {each.journal.operations()[-1]}"
            self.happened.update(each.happened)
            if each.error is not None:
                raise AssertionError(f"client {each.name} failed") from each.error
        return [each for thread in threads for each in thread.journal.operations()]

    @override
    def close(self, *, gently: bool = True) -> None:
        self._opened.close()


# CPython 3.11 refuses the one of two threads that sets its function while the other does, which an
# audit hook in Python makes likely; and what a function raises has it unset, which no lock can hold
# back. So all threads of an act have set theirs before one of them can raise, and none unsets it.
_tracing = threading.Lock()


class _KilledError(BaseException):
    """Ends a client."""


class _Thread(threading.Thread):
    """A client, which sees to its own faults."""

    def __init__(
        self,
        server: OrderedServer,
        part: Part,
        faults: Sequence[Fault],
        ready: threading.Barrier,
    ) -> None:
        super().__init__(name=part.name, daemon=True)
        self.journal = Journal(part.name)
        self.happened: list[Any] = []
        self.error: BaseException | None = None
        self._server, self._part, self._ready = server, part, ready
        self._faults = [each for each in faults if each.victim == part.number]
        self._lines = 0  #: that are run before the fault that is due
        self._due: Fault | None = None
        self._is_at_work = self._is_killed = False
        self._random = random.Random(f"{part.seed} {part.name} turns")
        # The interpreter does not hold what it calls: where that raises it may call what has gone.
        self._tracing = self._trace

    @override
    def run(self) -> None:
        with _tracing:
            sys.settrace(self._tracing)
        try:
            self._ready.wait(PATIENCE)
            self._is_at_work = True
            perform(self._server, self._part, self, 0.0)
        except BaseException as error:  # noqa: BLE001 - whoever started it raises it
            # Where it is ended, other code may fail before it ends, as it does after Ctrl-C; where
            # two are ended at once, CPython may raise its refusal in the one in place of ours.
            self.error = None if self._is_killed else error
        finally:
            self._is_at_work = False

    def begin(self, step: Step, start: float) -> None:
        """Note that a step begins, and whether something is to happen in it."""
        self.journal.begin(step, start)
        for fault in self._faults:
            if fault.after == self.journal.begun:
                self._due, self._lines = fault, int(fault.delay / LINE)

    def end(self, result: Any, start: float, end: float) -> None:
        """Note how it ended."""
        self.journal.end(result, start, end)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not self._is_at_work or frame.f_code.co_filename in _UNTRACED:
            return None
        if event == "line" and not self._is_killed:
            if self._due is not None:
                self._lines -= 1
                if self._lines < 0 and not _is_with(frame):
                    self._befall(self._due)
            elif self._random.random() < YIELDS:
                time.sleep(0)
        return self._tracing

    def _befall(self, fault: Fault) -> None:
        self._due = None
        self.happened.append(fault.kind)
        if fault.kind == "kill":
            self._is_killed = True
            raise _KilledError
        time.sleep(fault.lasting)


def _is_with(frame: FrameType) -> bool:
    """Return whether a ``with`` begins there or ends: no exception of others comes between.

    Python says "line" also where a block is left, when what is to end it has not yet been called.
    """
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return not line or line.lstrip().startswith(("with ", "async with "))
