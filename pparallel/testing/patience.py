"""Waiting for a condition, instead of sleeping; and no test waits for ever."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import psutil
import pytest

PATIENCE = 60.0  #: seconds after which a condition that should have come true never will

#: seconds, some thirty years, for who means for ever: more milliseconds than fit into an int
AGES = 1e9

_RUNNER = "_pytest.runner"
_PHASES = {"pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown"}
_AGAIN = 3.0  #: seconds after which what did not end when told to is told again


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until *condition* holds, or fail saying *what* did not happen."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} within {PATIENCE} s"
        threading.Event().wait(0.002)


def until_gone(*pids: int) -> None:
    """Wait until none of the processes with these ids is there any more, or fail."""
    until(lambda: not any(map(psutil.pid_exists, pids)), f"processes {pids} did not all end")


@contextmanager
def ends_within(limit: float) -> Iterator[None]:
    """Fail what runs inside once *limit* seconds have passed, and again while it goes on.

    The main thread is interrupted by ``SIGALRM``, so that a backend that hangs is a failed test,
    and its teardown ends too. A timer of somebody else that would ring earlier stays; one that
    would ring later rings later. In another thread, and in a debugger, there is no limit, and none
    for pytest's own work between the phases of a test.
    """
    rings_in, interval = signal.getitimer(signal.ITIMER_REAL)
    if threading.current_thread() is not threading.main_thread() or 0 < rings_in <= limit:
        yield
        return

    def fail(_: int, frame: FrameType | None) -> None:
        if _may_be_interrupted(frame):
            pytest.fail(f"the test did not end within {limit} s")

    began, handler = time.monotonic(), signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, limit, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if rings_in:
            left = max(rings_in - (time.monotonic() - began), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


def _may_be_interrupted(frame: FrameType | None) -> bool:
    """Return whether *frame* runs in a phase of a test, from which pytest takes any failure."""
    stack = [each for each, _ in traceback.walk_stack(frame)]
    modules = {each.f_globals.get("__name__") for each in stack}
    phases = {each.f_code.co_name for each in stack if each.f_globals.get("__name__") == _RUNNER}
    return bool(phases & _PHASES) and not modules & {"bdb", "pdb"}
