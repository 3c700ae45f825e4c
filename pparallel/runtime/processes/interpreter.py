"""Starts fresh interpreters: fork servers, and children of the method ``spawn``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pparallel.errors import PparallelError
from pparallel.runtime.processes import descriptors, signals
from pparallel.runtime.processes.environment import at_start


def launch(
    target: str, args: Sequence[object], fds: Sequence[int], environment: Mapping[bytes, bytes]
) -> int:
    """Start an interpreter that calls a function; return its pid, which the caller waits for.

    Args:
        target: ``module:function``.
        args: its arguments, that can be written as literals.
        fds: the descriptors that it keeps, with the same numbers; none is of a standard stream.
        environment: its own.

    Raises:
        PparallelError: no interpreter can be started.
    """
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [_executable(), *flags, "-c", _program(target, args)]
    try:
        with signals.held_back():
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=None if descriptors.is_open(1) else subprocess.DEVNULL,
                stderr=None if descriptors.is_open(2) else subprocess.DEVNULL,
                pass_fds=fds,
                env=at_start(environment),
            )
    except (FileNotFoundError, NotADirectoryError) as error:
        refuse(f"{sys.executable!r} is not there", error)
    except PermissionError as error:
        refuse(f"{sys.executable!r} cannot be run", error)
    started.returncode = 0  # ours to wait for: else it warns that nobody did
    return started.pid


def refuse(why: str, error: OSError | None = None) -> NoReturn:
    """Raise what says that there is no interpreter to start."""
    message = (
        f"no Python interpreter can be started: {why}; set sys.executable to one, or start"
        " processes with method='fork' (a pool: start_method: fork), which needs none"
    )
    raise PparallelError(message) from error


def _program(target: str, args: Sequence[object]) -> str:
    module, _, function = target.partition(":")
    path = [str(each) for each in sys.path if isinstance(each, str)]
    return (
        f"import sys; sys.path[:] = {path!a};"
        f" from {module} import {function}; {function}(*{tuple(args)!a})"
    )


def _executable() -> str:
    if getattr(sys, "frozen", False):
        refuse(f"{sys.executable!r} is a frozen program, not an interpreter")
    if not sys.executable:
        refuse("sys.executable is empty")
    return sys.executable
