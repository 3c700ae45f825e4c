"""Moments at which a signal's handler may run in the midst of a call."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

MOST = 400  #: steps of a tested call, at the most
#: Where an exception that is raised before the instruction, not after the last one, would not be
#: seen as one of an ``except`` clause, whose own exception the interpreter then keeps for ever.
LEAVING = frozenset({"PUSH_EXC_INFO", "POP_EXCEPT", "SWAP", "COPY", "RERAISE"})
AFTER = frozenset({"RESUME", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD"})


class Interruption:
    """Calls a function at the N-th moment at which a signal's handler may run in some modules.

    Moments inside a finalizer do not count: nothing that is raised comes out of one.
    """

    def __init__(self, number: int, what: Callable[[], object], *modules: Any) -> None:
        self.left, self._what = number, what
        self._files = {each.__file__ for each in modules}
        self._last: dict[FrameType, str] = {}
        # The interpreter does not hold what it calls: where that raises, and a finalizer runs as it
        # is let go of, it would call what has gone (CPython 3.11, sysmodule.c, call_trampoline).
        self._tracing = self._trace

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._tracing)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            now = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            # The interpreter looks for signals after these instructions only.
            may_be_interrupted = self._last.get(frame, "RESUME") in AFTER and now not in LEAVING
            if may_be_interrupted and not _is_finalizing(frame):
                self.left -= 1
                if self.left == 0:
                    self._last.clear()
                    self._what()
            self._last[frame] = now
        return self._tracing


def _is_finalizing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def at_each_moment(
    make: Callable[[], tuple[Callable[[], object], Callable[[], object], Callable[[int], None]]],
    *modules: Any,
) -> None:
    """Interrupt a call at each moment: *make* returns it, the interruption and the verdict."""
    for number in range(1, MOST):
        call, interruption, verdict = make()
        at = Interruption(number, interruption, *modules)
        with at.armed():
            call()
        if at.left > 0:
            assert number > 1
            return
        verdict(number)
    pytest.fail("it took more steps than were tried")
