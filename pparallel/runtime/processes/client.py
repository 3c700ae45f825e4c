"""This process's fork servers, and how it asks one for a child."""

from __future__ import annotations

import errno
import logging
import marshal
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from typing_extensions import override

from pparallel.errors import PparallelError
from pparallel.runtime.processes import (
    descriptors,
    environment,
    interpreter,
    lifeline,
    messages,
)
from pparallel.runtime.processes.inheritance import close_private, private
from pparallel.runtime.processes.process import Exit, Process, readable, watch
from pparallel.runtime.processes.request import Request

logger = logging.getLogger(__name__)

_SERVE = "pparallel.runtime.processes.server:serve"
_ATTEMPTS = 3  #: servers that may be killed while one child is started
_GRACE = 1.0  #: seconds in which a server tells of an end, or ends itself, that is already seen


class ServedProcess(Process):
    """A child of a fork server, which tells how it ended."""

    def __init__(self, pid: int, name: str, pidfd: int, line: int) -> None:
        super().__init__(pid, name, pidfd, line)
        self._line = line

    @override
    def _learn(self) -> Exit:
        try:
            if readable(self._line, _GRACE):
                message = messages.repeated(lambda: os.read(self._line, 64))
                if message:
                    return Exit(*messages.parsed(message))
        except OSError as error:
            logger.warning("how process %r has ended cannot be read: %s", self.name, error)
        return Exit(None, None)  # the server was killed, and the child with it

    @override
    def _leave(self) -> None:
        """The server waits for it in any case."""


class _LostError(Exception):
    """The server is gone, and has not taken the request."""


class ForkServer:
    """A fork server of this process, which has imported some modules.

    Attributes:
        preload: their names.
        users: how many threads use it now.
        pid: its own.
        pidfd: is readable once it has ended.
    """

    def __init__(self, preload: tuple[str, ...]) -> None:
        self.preload = preload
        self.users = 0
        with _private_pair() as (ours, theirs):
            fds = theirs.fileno(), lifeline.reader()
            surroundings = environment.inherited()
            self.pid = interpreter.launch(_SERVE, (*fds, preload), fds, surroundings)
            self.pidfd = private(lambda: watch(self.pid))
            self._control: socket.socket | None = socket.socket(fileno=ours.detach())

    def held(self) -> set[int]:
        """Return the descriptors that this process has for it."""
        return set() if self._control is None else {self._control.fileno(), self.pidfd}

    def ask(self, request: bytes, fds: Sequence[int]) -> tuple[int, int, int]:
        """Have a child forked; return its pid, a pidfd, and the socket that tells how it ended.

        Raises:
            _LostError: the server is gone; nothing has been started.
            OSError: the system gave no process or no descriptor.
            PparallelError: the server was killed, or could not import what it was to preload.
        """
        with _private_pair() as (line, its_end):
            self._send(request, its_end, fds)
            close_private(its_end)
            message, _, _ = messages.receive(line)
            if message != messages.TAKEN:
                self._was_not_taken(message)
            return *self._started(line), line.detach()

    def _send(self, request: bytes, line: socket.socket, fds: Sequence[int]) -> None:
        assert self._control is not None
        with _surroundings() as surroundings, _message(request) as (message, file):
            carried = [line.fileno(), *surroundings, *fds, *file]
            try:
                messages.send(self._control, message, carried)
            except ConnectionError as error:
                raise _LostError from error

    def _was_not_taken(self, message: bytes) -> NoReturn:
        if message.startswith(messages.BROKEN):
            servers.drop(self)  # the next one sees what has been mended meanwhile
            module, trace = marshal.loads(message[1:])
            text = f"the fork server cannot import {module!r}, which it is to preload\n{trace}"
            raise PparallelError(text)
        if message.startswith(messages.FAILED):
            raise OSError(*marshal.loads(message[1:]))
        if readable(self.pidfd, _GRACE):
            raise _LostError
        raise OSError(errno.EMFILE, "the fork server has no descriptors left")

    def _started(self, line: socket.socket) -> tuple[int, int]:
        message, fds, _ = messages.receive(line)
        if message.startswith(messages.STARTED):
            pid, _ = messages.parsed(message)
            if not fds:  # there was no room for it
                os.kill(pid, signal.SIGKILL)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return pid, descriptors.lifted(fds[0])
        if message.startswith(messages.FAILED):
            raise OSError(*marshal.loads(message[1:]))
        raise PparallelError("the fork server was killed while it started a process")

    def end(self) -> int | None:
        """End it, and its children with it; return its exit code if that is known."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        try:
            ended = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        except ChildProcessError:  # somebody else in this program has waited for it
            return None
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def close(self) -> None:
        """Give the descriptors back, once no thread uses them."""
        control, self._control = self._control, None
        if control is not None:
            close_private(control, self.pidfd)

    def __del__(self) -> None:
        if getattr(self, "_control", None):  # in a forked child, which has no servers
            self.close()


class _ForkServers:
    """All of this process's fork servers, by what they preload."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, ...], ForkServer] = {}

    @contextmanager
    def lent(self, preload: tuple[str, ...]) -> Iterator[ForkServer]:
        """Yield the server for a set of modules; several threads may have it."""
        with self._lock:
            if preload not in self._running:
                self._running[preload] = ForkServer(preload)
            server = self._running[preload]
            server.users += 1
        try:
            yield server
        finally:
            with self._lock:
                server.users -= 1
                if not server.users and self._running.get(preload) is not server:
                    server.close()

    def drop(self, server: ForkServer) -> int | None:
        """End a server that is lent to this thread; return its exit code if that is known."""
        with self._lock:
            if self._running.get(server.preload) is not server:
                return None
            del self._running[server.preload]
        return server.end()

    def running(self) -> list[ForkServer]:
        with self._lock:
            return list(self._running.values())


servers = _ForkServers()


def start(request: Request, fds: Sequence[int], preload: Sequence[str]) -> Process:
    """Have a fork server start a child; a server that was killed is replaced."""
    data, modules = request.dumps(), tuple(dict.fromkeys(preload))
    code = None
    for _ in range(_ATTEMPTS):
        with servers.lent(modules) as server:
            try:
                pid, pidfd, line = server.ask(data, fds)
                return ServedProcess(pid, request.name, pidfd, line)
            except _LostError:
                code = servers.drop(server)
        if code is not None and code > 0:
            break
    if code is not None and code >= 0:  # 0 each time: its control socket may have ended once
        return interpreter.refuse(f"{sys.executable!r} as a fork server ended with code {code}")
    raise PparallelError(f"the fork server was killed {_ATTEMPTS} times while it started a process")


@contextmanager
def _private_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield two connected sockets that no forked child gets; what is left of them is closed."""
    pair = private(descriptors.packet_pair)
    try:
        yield pair
    finally:
        close_private(*pair)


@contextmanager
def _surroundings() -> Iterator[list[int]]:
    """Yield descriptors of the working directory, of standard output and of standard error."""
    opened = [descriptors.opened(".", os.O_PATH | os.O_DIRECTORY)]
    streams = [1, 2]
    try:
        for number, stream in enumerate(streams):
            if not descriptors.is_open(stream):
                opened.append(descriptors.opened(os.devnull, os.O_RDWR))
                streams[number] = opened[-1]
        yield [opened[0], *streams]
    finally:
        descriptors.close(*opened)


@contextmanager
def _message(request: bytes) -> Iterator[tuple[bytes, list[int]]]:
    """Yield the message for a request, and the file that holds it if it is long."""
    if len(request) <= messages.INLINE:
        yield request, []
        return
    file = messages.stored(request)
    try:
        yield messages.IN_FILE, [file]
    finally:
        os.close(file)
