"""Exceptions of signal handlers: they have nothing to do with what was under way in their thread.

A time-out by a timer, for one, raises an exception of any kind wherever its signal comes. Whoever
reports, replaces or drops the errors of what it calls asks here first, and lets those go on.
"""

from __future__ import annotations

import signal
import threading
from functools import partial
from inspect import CO_VARARGS
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any


def is_interrupt(error: BaseException) -> bool:
    """Return whether the handler of a signal has raised *error*, which the caller has caught."""
    if threading.current_thread() is not threading.main_thread():  # no handler runs elsewhere
        return False
    if isinstance(error, KeyboardInterrupt):  # Python's own handler has no frame
        return True
    traceback = error.__traceback__
    while traceback is not None and (traceback := traceback.tb_next) is not None:
        if _is_handler(traceback.tb_frame):
            return True
    return False


def raise_interrupt(error: BaseException) -> None:
    """Raise *error*, which the caller has caught, if the handler of a signal has raised it."""
    if is_interrupt(error):
        raise error


def _is_handler(frame: FrameType) -> bool:
    """Return whether a function handles a signal, or was called as one that did.

    That is with a number and the frame that its call has interrupted.
    """
    interrupted, code, values = frame.f_back, frame.f_code, frame.f_locals
    if any(code is _code(signal.getsignal(each)) for each in signal.valid_signals()):
        return True
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
    given: list[Any] = []
    for name in code.co_varnames[:count]:
        value = values.get(name)
        given += value if type(value) is tuple else (value,)
    numbers = [each for each in given if issubclass(type(each), int)]  # a proxy may be dead
    return bool(numbers) and any(each is interrupted for each in given if each is not None)


def _code(handler: Any) -> CodeType | None:
    """Return the code that the handler of a signal runs first, if it is one of Python."""
    if isinstance(handler, partial):
        return _code(handler.func)
    if isinstance(handler, MethodType):
        return _code(handler.__func__)
    if not isinstance(handler, FunctionType):
        handler = vars(type(handler)).get("__call__")
    return handler.__code__ if isinstance(handler, FunctionType) else None
