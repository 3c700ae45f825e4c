"""Children of this process itself: fresh interpreters (``spawn``) and forks."""

from __future__ import annotations

import io
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from typing_extensions import override

from pparallel.runtime.processes import (
    child,
    descriptors,
    environment,
    handover,
    interpreter,
    lifeline,
    main_module,
    messages,
    signals,
)
from pparallel.runtime.processes.inheritance import (
    forget_in_children,
    kept,
    no_fork,
    remember_in_children,
)
from pparallel.runtime.processes.process import Exit, Process, watch
from pparallel.runtime.processes.request import Request

_LIVE = "pparallel.runtime.processes.spawned:live"
_EXECUTORS = {
    "concurrent.futures.thread": "_threads_queues",
    "concurrent.futures.process": "_threads_wakeups",
}


class OwnProcess(Process):
    """A child that this process waits for.

    A program that waits for any child at all, or ignores ``SIGCHLD``, may take the exit code.
    """

    def __init__(self, pid: int, name: str, pidfd: int, unknown_below: int = 0) -> None:
        super().__init__(pid, name, pidfd)
        self._unknown_below = unknown_below

    @override
    def _learn(self) -> Exit:
        try:
            # By the pidfd first: the pid is another process's if somebody else has waited.
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            return Exit(None, None)
        peak = usage.ru_maxrss * 1024
        code = os.waitstatus_to_exitcode(status)
        return Exit(code, peak if peak > self._unknown_below else None)

    @override
    def _leave(self) -> None:
        if self._exit is None:
            _left.add(self.pid)
            _reap()


_left: set[int] = set()  #: children that ran when they were closed


def _reap() -> None:
    """Wait for those that have ended since, so that no dead process stays."""
    for each in tuple(_left):
        try:
            ended, _ = os.waitpid(each, os.WNOHANG)
        except ChildProcessError:
            ended = each
        if ended:
            _left.discard(each)


os.register_at_fork(after_in_child=_left.clear)


def spawn(request: Request, fds: Sequence[int]) -> Process:
    """Start a child in a fresh interpreter."""
    _reap()
    copies: list[int] = []
    try:
        with no_fork():
            copies += (descriptors.duplicate(each) for each in fds)
            forget_in_children(*copies)
        copies.append(stored := messages.stored(request.dumps()))
        watched = lifeline.reader()
        args = stored, watched, copies[:-1]
        pid = interpreter.launch(_LIVE, args, [watched, *copies], request.environment)
    finally:
        with no_fork():
            remember_in_children(*copies)
            descriptors.close(*copies)
    # What counts for it as its peak includes that of this process, whose memory it had until exec.
    before_exec = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return OwnProcess(pid, request.name, watch(pid), before_exec)


def fork(request: Request, fds: Sequence[int]) -> Process:
    """Start a child as a copy of this process."""
    _reap()
    with suppress(OSError, ValueError):  # a closed stream has nothing to say
        child.flush()  # else both would write what is buffered
    watched = lifeline.reader()
    gate = descriptors.pipe()
    made = [*gate]
    try:
        # The child's standard input takes the place of what has such a number.
        low = {each: descriptors.duplicate(each) for each in fds if each < descriptors.FIRST}
        made += low.values()
        fds = [low.get(each, each) for each in fds]
        with signals.held_back(), kept({watched, *fds}):
            pid = os.fork()
            if not pid:
                _live_forked(request, fds, watched, gate)
        pidfd = watch(pid)
        os.write(gate[1], b"\0")
    finally:
        descriptors.close(*made)
    return OwnProcess(pid, request.name, pidfd)


def _live_forked(
    request: Request, fds: Sequence[int], watched: int, gate: tuple[int, int]
) -> NoReturn:
    def prepare() -> None:
        import atexit

        lifeline.tie(watched)
        os.close(gate[1])
        # Until the parent has a pidfd, which it could not have of one that has ended.
        if not os.read(gate[0], 1):
            os._exit(1)
        os.close(gate[0])
        atexit._clear()  # what is registered there is the parent's to do
        _forget_executors()
        handover.be_a_fork()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
        environment.become(request.environment, dict(os.environb))
        signals.reset()
        main_module.follows_caller = False  # unless it is made a worker
        child.reseed()

    try:
        child.live(request, fds, prepare)
    finally:
        os._exit(1)


def _forget_executors() -> None:
    """Keep the executors of the parent from joining, at the end, threads that are not here."""
    for module, threads in _EXECUTORS.items():
        if module in sys.modules:
            getattr(sys.modules[module], threads).clear()
