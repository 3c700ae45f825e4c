"""The one place where functions of users are called, and whether a thread has entered one."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dis import opmap
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_RESUME = bytes((opmap["RESUME"],))  #: the instruction with which a function begins


def run(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call *function* and return its result."""
    return function(*args, **kwargs) if kwargs else function(*args)


def passing_on(function: F) -> F:
    """Say that *function* is none of a user's, but calls one by :func:`run`."""
    assert isinstance(function, FunctionType)
    _PASSING.add(function.__code__)
    return function


def has_entered(thread: int) -> bool:
    """Return whether a thread has entered the function that it calls by :func:`run`.

    The interpreter takes the GIL from a thread as it enters a function of Python, before the first
    instruction, and not between there and the end of the first call of C code: a thread that has
    come further has begun for all to see. A function in C, such as ``time.sleep``, is entered as
    soon as :func:`run` is.

    Args:
        thread: its ``threading.get_ident()``, of another thread than the calling one.
    """
    with _looking:  # another thread that is here would have the collector on again
        collects = gc.isenabled()
        try:
            if collects:
                gc.disable()
            return _has_entered(sys._current_frames().get(thread))
        finally:
            if collects:
                gc.enable()


def is_inside() -> bool:
    """Return whether the calling thread is in a function that it calls by :func:`run`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _CODE:
        frame = frame.f_back
    return frame is not None


def _has_entered(frame: FrameType | None) -> bool:
    """Return whether a thread that is at *frame* has entered that function.

    No garbage may be collected meanwhile. To look at the frames of another thread makes objects; if
    CPython 3.11 collects garbage for room, and what is collected lets that thread run, it finds
    other things in the place of the frames. Before 3.11.9 it would also hold a lock that is needed
    to start and to end a thread: nothing of the process would run ever again
    (https://github.com/python/cpython/issues/106883).
    """
    inner = None
    while frame is not None:
        if frame.f_code is _CODE:
            last = frame if inner is None else inner
            return last.f_code not in _PASSING and _is_past_start(last)
        frame, inner = frame.f_back, frame
    return False


def _is_past_start(frame: FrameType) -> bool:
    return frame.f_lasti > 2 * frame.f_code.co_code[::2].find(_RESUME)


_looking = threading.RLock()
# Who forks has no other thread of it leave the collector off in the child.
os.register_at_fork(
    before=_looking.acquire, after_in_parent=_looking.release, after_in_child=_looking.release
)
_PASSING: set[CodeType] = set()
_CODE = run.__code__
