"""Ways to fail and to die, for tasks, arguments and results of tests; imports nothing heavy."""

from __future__ import annotations

import ctypes
import operator
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from typing_extensions import override


def exit_in_c(status: int) -> NoReturn:
    """End the process as a C library does: with C's exit handlers, and none of Python's."""
    ctypes.CDLL(None).exit(status)
    raise AssertionError


class Death(NamedTuple):
    """A call after which its process is no more.

    Attributes:
        call: the function; importable everywhere.
        args: its arguments.
        exitcode: what the process ends with: a status, or minus the number of a signal.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    exitcode: int


DEATHS = {
    "exit": Death(os._exit, (7,), 7),
    "C exit": Death(exit_in_c, (8,), 8),
    "segfault": Death(ctypes.string_at, (0,), -signal.SIGSEGV),
    "SIGKILL": Death(signal.raise_signal, (signal.SIGKILL,), -signal.SIGKILL),
}

#: calls that fail without ending their process, if it is well made: (call, args, what they raise)
FAILURES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], type[BaseException]]] = {
    "exception": (operator.truediv, (1, 0), ZeroDivisionError),
    "sys.exit": (sys.exit, (5,), SystemExit),
}


class WhenSent:
    """Makes a call when it is pickled."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call, self.args = call, args

    @override
    def __reduce__(self) -> Any:
        return self.call(*self.args)


class WhenRebuilt(WhenSent):
    """Makes a call when it is unpickled."""

    @override
    def __reduce__(self) -> Any:
        return self.call, self.args


class WhenStateIsSet:
    """Makes a call when it is unpickled, once its attributes are there."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call, self.args = call, args

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.call(*self.args)


class WhenCollected:
    """Makes a call when it is collected anywhere but where it was made.

    It is part of a cycle, so that this happens in the garbage collection, at some time.
    """

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call, self.args, self.home = call, args, os.getpid()
        self.cycle = self

    def __del__(self) -> None:
        if self.home != os.getpid():
            self.call(*self.args)


class ErrorWhenSent(Exception):  # noqa: N818
    """An exception that makes a call when it is pickled."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__("to be sent")
        self.call, self.call_args = call, args

    @override
    def __reduce__(self) -> Any:
        return self.call(*self.call_args)


class ErrorWhenRebuilt(ErrorWhenSent):
    """An exception that makes a call when it is unpickled."""

    @override
    def __reduce__(self) -> Any:
        return self.call, self.call_args


def throw(kind: type[ErrorWhenSent], call: Callable[..., Any], args: tuple[Any, ...]) -> NoReturn:
    """Raise an exception of that kind."""
    raise kind(call, args)


def drop(_: object) -> None:
    """Do nothing with the argument."""
