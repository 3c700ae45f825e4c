"""Starts processes, and knows how they ended.

Three methods: a fork server of our own (``forkserver``), a fresh interpreter (``spawn``) and a copy
of this process (``fork``). None runs ``__main__`` again. A child calls one function, and ends when
its parent does, whatever it is doing, within two seconds at most. Linux only.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from pparallel.runtime.processes.environment import child_environment
from pparallel.runtime.processes.inheritance import (
    close_private,
    forget_in_children,
    private,
    remember_in_children,
)
from pparallel.runtime.processes.process import Exit, Process

__all__ = [
    "Exit",
    "Process",
    "StartMethod",
    "child_environment",
    "close_private",
    "forget_in_children",
    "helpers",
    "private",
    "remember_in_children",
    "start",
]

StartMethod = Literal["forkserver", "spawn", "fork"]


def start(
    target: str,
    payload: bytes,
    fds: Sequence[int] = (),
    *,
    method: StartMethod = "forkserver",
    name: str = "",
    environment: Mapping[str, str] | None = None,
    preload: Sequence[str] = (),
) -> Process:
    """Start a process that calls ``target(payload, fds)``. Any thread may do so.

    It does not wait until the child is ready. The child has this process's working directory,
    ``sys.path``, ``sys.argv``, affinity, standard output and standard error as they are now. Its
    standard input is empty, and Ctrl-C does not end it. Its ``__main__`` has the file, package and
    spec of this process's, and no contents; with ``fork`` it is this process's. When the target
    returns, the child runs what ``atexit`` has for it and ends with code 0; it ends with 1 after
    an exception, whose traceback it prints, and with its own code after ``SystemExit``.

    Args:
        target: ``module:function``.
        payload: its first argument.
        fds: descriptors for the child; its own numbers of them are the second argument, in the
            same order. They stay the caller's to close.
        method: ``fork`` copies this process as it is, with locks that other threads hold; Python
            warns of that since 3.12 if there are threads.
        name: what tools such as ``ps`` show, at most 15 bytes of it.
        environment: the child's whole environment; ``None``: this process's, less what tells it
            alone its place in a job (``RANK``, ``MASTER_*``, ``PPARALLEL_*`` and their like).
        preload: modules that the fork server imports once, before it forks; there is one server
            for each set of them. The other methods have no use for them.

    Raises:
        PparallelError: no interpreter can be started, or a module cannot be preloaded.
        ResourceExhaustedError: the system gives no further process, descriptor or memory.
        ValueError: there is no such method, or there are too many descriptors.
    """
    if sys.platform != "linux":
        from pparallel.errors import PparallelError

        message = f"processes are started on Linux only, not on {sys.platform}; use a thread pool"
        raise PparallelError(message)
    if method not in get_args(StartMethod):
        message = f"there is no start method {method!r}: {', '.join(get_args(StartMethod))}"
        raise ValueError(message)
    from pparallel.runtime.processes import client, messages, own
    from pparallel.runtime.processes.request import Request

    messages.check(fds)
    request = Request.of_this_process(target, payload, name, environment)
    try:
        if method == "forkserver":
            return client.start(request, fds, preload)
        return own.spawn(request, fds) if method == "spawn" else own.fork(request, fds)
    except OSError as error:
        _explain(error, name)
        raise


def _explain(error: OSError, name: str) -> None:
    """Raise what says which resource ran out, if one did."""
    from pparallel.errors import ResourceExhaustedError
    from pparallel.runtime.resources import explaining

    what = f"the start of process {name!r}" if name else "the start of a process"
    if error.strerror != os.strerror(error.errno or 0):
        what = f"{what} ({error.strerror})"
    if error.errno == errno.EAGAIN:
        advice = "let some end, or raise the limit (ulimit -u, the container's pids.max)"
        raise ResourceExhaustedError(what, "processes", errno.EAGAIN, advice) from error
    with explaining(what):
        raise error


def helpers() -> tuple[set[int], set[int]]:
    """Return the pids, and the descriptors, that this process keeps for life for our sake."""
    from pparallel.runtime.processes import client, lifeline

    running = client.servers.running()
    held = set[int]().union(*(each.held() for each in running))
    return {each.pid for each in running}, held | lifeline.held()
