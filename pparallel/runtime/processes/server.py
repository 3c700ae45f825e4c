"""The fork server: a small process that forks children on request and tells how they ended.

It runs one thread and imports as little as it can, so that a fork is quick, copies no lock that a
thread holds, and shares no socket or memory of the program. It ends with its parent, by the kernel
(see :mod:`pparallel.runtime.processes.lifeline`), and its children with it.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib
import marshal
import os
import select
import signal
import socket
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from pparallel.runtime.processes import (
    child,
    descriptors,
    environment,
    lifeline,
    main_module,
    messages,
    signals,
)
from pparallel.runtime.processes.request import Request

__all__ = ["serve"]

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class _Child(NamedTuple):
    pid: int
    pidfd: int
    line: socket.socket


def serve(control: int, parent: int, preload: Sequence[str]) -> NoReturn:
    """Serve the parent until it is gone.

    Args:
        control: the number of the socket on which requests come.
        parent: that of the parent's lifeline.
        preload: modules that the children are to find imported.
    """
    lifeline.tie(parent)
    signals.reset()  # an ignored SIGCHLD is inherited, and would lose exit codes
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.OF_GROUPS)
    main_module.install((None, None, None))
    broken = _preloaded(preload)
    signals.reset()  # whatever the modules have done
    for each in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        each.atexit = False  # children share what it is for, and one ends before another
    os.chdir("/")
    gc.disable()
    gc.collect()
    gc.freeze()
    _Server(socket.socket(fileno=control), broken).run()


def _preloaded(modules: Sequence[str]) -> bytes:
    """Import modules; return what is to be said if one cannot be."""
    for each in modules:
        try:
            importlib.import_module(each)
        except BaseException:  # noqa: BLE001 - the parent is told
            import traceback

            return messages.BROKEN + marshal.dumps((each, traceback.format_exc()[-8000:]))
    return b""


class _Server:
    def __init__(self, control: socket.socket, broken: bytes) -> None:
        self._control, self._broken = control, broken
        self._environment = dict(os.environb)
        self._children: dict[int, _Child] = {}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def run(self) -> NoReturn:
        while True:
            for ready, _ in self._poll.poll():
                if ready == self._control.fileno():
                    self._take()
                else:
                    self._tell(self._children.pop(ready))

    def _take(self) -> None:
        try:
            data, fds, cut = messages.receive(
                self._control, messages.INLINE + 1, messages.MOST_DESCRIPTORS
            )
        except OSError:  # the request is there still, and asked for again
            return
        if not data:
            self._end()
        if not fds:  # none could be received: the end that was in the message has been closed
            return
        line = socket.socket(fileno=fds[0])
        try:
            messages.send(line, self._broken or messages.TAKEN)
            if cut:
                raise OSError(errno.EMFILE, "the fork server has no descriptors left")
            if not self._broken:
                self._start(line, data, fds[1:])
                return
        except ConnectionError:
            pass  # who asked is gone
        except OSError as error:
            with suppress(OSError):  # then the end of the line tells
                messages.send(line, messages.FAILED + marshal.dumps((error.errno, error.strerror)))
        descriptors.close(*fds[1:])
        line.close()

    def _start(self, line: socket.socket, data: bytes, fds: list[int]) -> None:
        if data == messages.IN_FILE:
            data = messages.fetched(fds.pop())
        server = os.getpid()
        with warnings.catch_warnings():  # what is preloaded may have started threads
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            self._become(server, line, data, fds)
        pidfd = self._watched(pid)
        try:
            messages.send(line, messages.numbers(messages.STARTED, pid), [pidfd])
        except OSError:  # who asked has been interrupted, or cannot be told
            self._poll.unregister(pidfd)
            os.close(pidfd)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        descriptors.close(*fds)
        self._children[pidfd] = _Child(pid, pidfd, line)

    def _watched(self, pid: int) -> int:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._poll.register(pidfd, select.POLLIN)
        return pidfd

    def _tell(self, ended: _Child) -> None:
        self._poll.unregister(ended.pidfd)
        _, status, usage = os.wait4(ended.pid, 0)
        how = messages.numbers(
            messages.ENDED, os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        )
        with ended.line, suppress(OSError):  # nobody may want to know
            messages.send(ended.line, how)
        os.close(ended.pidfd)

    def _end(self) -> NoReturn:
        for each in self._children.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(each.pidfd, signal.SIGKILL)
        os._exit(0)

    def _become(self, server: int, line: socket.socket, data: bytes, fds: list[int]) -> NoReturn:
        """Turn this process, forked from the server, into a child."""
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            self._control.close()
            line.close()
            for each in self._children.values():
                each.line.close()
                os.close(each.pidfd)
            request, (folder, out, err, *handed) = Request.loads(data), fds
            surroundings = _Surroundings(folder, out, err, self._environment)
            child.live(request, handed, lambda: surroundings.adopt(request))
        finally:
            os._exit(1)


class _Surroundings(NamedTuple):
    """What a child gets from its grandparent: the server has what that had when it was started."""

    folder: int
    out: int
    err: int
    environment: dict[bytes, bytes]  #: the server's

    def adopt(self, request: Request) -> None:
        gc.enable()
        os.fchdir(self.folder)
        os.dup2(self.out, 1)
        os.dup2(self.err, 2)
        descriptors.close(self.folder, self.out, self.err)
        environment.become(request.environment, self.environment)
        if os.sched_getaffinity(0) != set(request.affinity):
            os.sched_setaffinity(0, request.affinity)
        main_module.install(request.main)
        child.reseed()
