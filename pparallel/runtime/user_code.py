"""The one place where functions of users are called, and whether a thread has entered one."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dis import opmap
from functools import partial
from itertools import accumulate, repeat
from operator import call
from types import FrameType
from typing import Any, TypeVar, cast

T = TypeVar("T")

_RESUME = bytes((opmap["RESUME"],))  #: the instruction with which a function begins


def run(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call *function* and return its result."""
    return function(*args, **kwargs) if kwargs else function(*args)


def has_entered(thread: int) -> bool:
    """Return whether a thread has entered the function that it calls by :func:`run`.

    The interpreter takes the GIL from a thread as it enters a function of Python, before the first
    instruction, and not between there and the end of the first call of C code: a thread that has
    come further has begun for all to see. A function in C, such as ``time.sleep``, is entered as
    soon as :func:`run` is.

    Args:
        thread: its ``threading.get_ident()``, of another thread than the calling one.
    """
    inner = None
    for frame in _stack(thread):
        if frame.f_code is _CODE:
            last = frame if inner is None else inner
            return _is_past_start(last)
        inner = frame
    return False


def is_inside() -> bool:
    """Return whether the calling thread is in a function that it calls by :func:`run`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _CODE:
        frame = frame.f_back
    return frame is not None


def _stack(thread: int) -> list[FrameType]:
    """Return the frames of a thread, the innermost first; they may go on meanwhile."""
    found: list[Any] = [_uncollected(sys._current_frames).get(thread)]
    back = accumulate(repeat("f_back"), getattr, initial=found.pop())
    with suppress(AttributeError):  # None has no f_back
        _uncollected(partial(found.extend, back))
    return found[:-1]


def _uncollected(act: Callable[[], T]) -> T:
    """Return what *act* does, which is written in C, while no garbage is collected.

    CPython 3.11 collects garbage for room as it makes an object of a frame of another thread. If
    what is collected lets that thread run, it finds other things in the place of the frame. Before
    3.11.9 it may also hold a lock that is needed to start and to end a thread: nothing of the
    process runs ever again (https://github.com/python/cpython/issues/106883).

    No other thread runs from the first to the last: nor is its setting of the collector changed.
    """
    found: list[Any] = []
    back = map(call, (gc.enable,))
    try:
        found += map(call, (gc.isenabled, gc.disable, act))
    finally:
        if found and found[0]:
            found += back
    return cast("T", found.pop(2))  # which may hold this frame: no name here refers to it


def _is_past_start(frame: FrameType) -> bool:
    return frame.f_lasti > 2 * frame.f_code.co_code[::2].find(_RESUME)


_CODE = run.__code__
