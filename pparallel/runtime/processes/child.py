"""The life of a child: it is set up, calls its target, and ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from pparallel.runtime.processes import signals
from pparallel.runtime.processes.request import Request


def live(request: Request, fds: Sequence[int], prepare: Callable[[], None]) -> NoReturn:
    """Do what a child is for, and end.

    Args:
        request: what it was told.
        fds: its own numbers of the descriptors it was handed.
        prepare: the set-up that depends on how it was started.
    """
    code = 1
    try:
        code = _outcome(lambda: _work(request, fds, prepare), request.name)
        code = _outcome(_finish, request.name) or code
        flush()
    finally:
        os._exit(code & 0xFF)


def _work(request: Request, fds: Sequence[int], prepare: Callable[[], None]) -> None:
    prepare()
    _name(request.name)
    sys.path[:] = request.path
    sys.argv[:] = request.argv
    signals.let_through()
    module, _, function = request.target.partition(":")
    target = getattr(import_module(module), function)
    target(request.payload, fds)


def _name(name: str) -> None:
    if name:
        with suppress(OSError):  # it is only for the eye
            comm = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
            os.write(comm, os.fsencode(name)[:15])
            os.close(comm)


def reseed() -> None:
    """Give a forked process random numbers of its own; module ``random`` does so by itself."""
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()


def _outcome(act: Callable[[], None], name: str) -> int:
    try:
        act()
    except SystemExit as request:
        return _exit_code(request.code)
    except BaseException:  # noqa: BLE001 - nobody above would show it
        _say(f"Process {name or os.getpid()}:")
        sys.__excepthook__(*sys.exc_info())
        return 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    _say(str(code))
    return 1


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")


def _finish() -> None:
    import atexit

    if threading := sys.modules.get("threading"):
        threading._shutdown()
    atexit._run_exitfuncs()


def flush() -> None:
    """Write out what standard output and standard error hold."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
