"""Threads of a transport in which a function of the user may run, so that no other has to.

One that is *alone* serves one request at a time, and nobody else waits for it. One that *leads*
receives for a whole member: between two messages it may run what is quick, and passes its role on
before it blocks.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

from pparallel.runtime import user_code

Act = Callable[[], None]
F = TypeVar("F", bound=Callable[..., Any])

_EXCLUSIVE: set[CodeType] = set()

#: What the calling thread is. Others wait for one that receives, or looks after those that do.
RECEIVING, ELSEWHERE, ALONE, LEADING = range(-1, 3)


class Role:
    """What a thread is.

    Attributes:
        kind: may change: to set an attribute costs less than to call a function.
        do: has the thread that leads run something after what it runs now; for that thread itself.
    """

    __slots__ = ("do", "kind", "pass_on")

    def __init__(
        self,
        kind: int,
        pass_on: Callable[[], object] | None = None,
        do: Callable[[Act], None] | None = None,
    ) -> None:
        self.kind, self.pass_on, self.do = kind, pass_on, do


class _Here(threading.local):
    role = Role(ELSEWHERE)


here = _Here()  #: has the role of the calling thread


def mark_alone() -> None:
    """Say that the calling thread serves one request at a time."""
    here.role = Role(ALONE)


def mark_receiving() -> None:
    """Say that calls of others depend on the calling thread, which runs no function of a user."""
    here.role = Role(RECEIVING)


def mark_leading(pass_on: Callable[[], object], do: Callable[[Act], None]) -> Role:
    """Say that the calling thread receives for others.

    Args:
        pass_on: has another thread receive.
        do: has something run after what is run now.

    Returns:
        Its role, whose kind is to be ``LEADING`` whenever *pass_on* has another thread receive.
    """
    role = here.role = Role(ELSEWHERE, pass_on, do)
    return role


def kind() -> int:
    """Return what the calling thread is."""
    return here.role.kind


def about_to_block() -> None:
    """Pass the role of the calling thread on, if it has one."""
    role = here.role
    if role.kind == LEADING and role.pass_on is not None:
        role.kind = ALONE
        role.pass_on()


def exclusive(function: F) -> F:
    """Say that others wait while a thread runs *function*, which a handler may interrupt."""
    assert isinstance(function, FunctionType)
    _EXCLUSIVE.add(function.__code__)
    return function


def is_awaited() -> bool:
    """Return whether others wait for the calling thread to go on; not for where time matters."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _EXCLUSIVE:
        frame = frame.f_back
    return frame is not None or here.role.kind == RECEIVING


def refuse_to_wait() -> None:
    """Refuse that the calling thread, which is not elsewhere, waits outside a user's function.

    Raises:
        RuntimeError: a finalizer or a signal's handler has interrupted what others wait for.
    """
    if here.role.kind == RECEIVING or not user_code.is_inside():
        message = (
            f"thread {threading.current_thread().name!r} is to send or receive what others wait"
            " for, and cannot wait for an answer before it goes on: have a finalizer (__del__,"
            " weakref.finalize, gc.callbacks), which runs in any thread, a signal's handler or a"
            " callback of when_lost start calls with rpc_async, and not wait for them"
        )
        raise RuntimeError(message)
