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
    """Calls a function at the N-th moment at which a signal's handler may run in some modules."""

    def __init__(self, number: int, what: Callable[[], object], *modules: Any) -> None:
        self.left, self._what = number, what
        self._files = {each.__file__ for each in modules}
        self._last: dict[FrameType, str] = {}

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
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
            if self._last.get(frame, "RESUME") in AFTER and now not in LEAVING:
                self.left -= 1
                if self.left == 0:
                    self._last.clear()
                    self._what()
            self._last[frame] = now
        return self._trace


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
