"""Injection of faults: the N-th call of a kind fails, in the processes that have this module.

Importing this module does nothing; :func:`install` replaces the entry points of the standard
library through which pparallel acquires resources and sends and receives. The replacements count a
call only if the innermost pparallel frame on the stack belongs to pparallel itself and not to its
testing kit. What is armed stands in a block of memory that several processes map (:class:`Switch`),
so that a fault is armed in another process without a message to it.

Source: the anomaly tests of SQLite (https://sqlite.org/testing.html, sections 3.1 to 3.3), whose
instrumented ``malloc`` and VFS fail the N-th call, for N = 1, 2, ... until the operation passes.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import itertools
import marshal
import mmap
import os
import pickle
import select
import socket
import sqlite3
import stat
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple

from typing_extensions import override

#: names the file of the switch in the environment of the processes of a scenario
VARIABLE = "ANOMALIES_SWITCH"

#: the kinds of calls that can fail, and the errors of each; 0 stands for the kind's own exception
KINDS: dict[str, tuple[int, ...]] = {
    "descriptor": (errno.EMFILE, errno.ENFILE),
    "thread": (0,),
    "fork": (errno.EAGAIN, errno.ENOMEM),
    "mmap": (errno.ENOMEM, errno.ENOSPC),
    "memory": (0,),
    "send": (errno.EPIPE, errno.EAGAIN, errno.ENOBUFS),
    "recv": (errno.ECONNRESET, errno.EAGAIN, errno.ENOMEM),
    "accept": (errno.EMFILE, errno.ECONNABORTED),
    "disk": (errno.ENOSPC,),
}
BROKEN = frozenset({errno.EPIPE, errno.ECONNRESET})  #: they say that a connection has ended

_ORDER = list(KINDS)
_HEAD = struct.Struct("=BIIiiBI")  # kind + 1 or 0, generation, number, errno, pid, fired, reached
_FIRED, _REACHED = 17, 18  # where the last two of these stand
_WHERE = 3000  #: bytes for the stack of the call that failed
_SIZE = _HEAD.size + _WHERE
_PATIENCE = 1.0  #: seconds that the stack of a call that fails may take
_memory = mmap.mmap  # the harness's own, whatever is replaced


class Armed(NamedTuple):
    """What the switch holds: see :meth:`Switch.arm`."""

    kind: int
    generation: int
    number: int
    errno: int
    pid: int
    fired: int
    reached: int


class Switch:
    """What is to fail, in memory that all processes of a scenario map.

    Args:
        path: a file; it is created when it is not there.
    """

    def __init__(self, path: str) -> None:
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(number, _SIZE)
            self._block = _memory(number, _SIZE)
        finally:
            os.close(number)
        self._counts: dict[int, Iterator[int]] = {}  # by generation, of this process

    def arm(self, kind: str, number: int, error: int, pid: int) -> None:
        """Let call *number* of *kind* fail.

        Args:
            kind: one of :data:`KINDS`.
            number: from 1, of the calls that one process makes.
            error: the error number, one of the kind's.
            pid: the process in which it fails; negative: any process but that one.
        """
        generation = Armed(*_HEAD.unpack_from(self._block)).generation + 1
        self._block[_HEAD.size :] = bytes(_WHERE)
        _HEAD.pack_into(self._block, 0, 0, generation, number, error, pid, 0, 0)
        self._block[0] = _ORDER.index(kind) + 1

    def disarm(self) -> tuple[bool, str]:
        """Let nothing fail; return whether the fault was reached, and the stack of the call."""
        self._block[0] = 0
        deadline = time.monotonic() + _PATIENCE
        armed = Armed(*_HEAD.unpack_from(self._block))
        while armed.fired and not armed.reached and time.monotonic() < deadline:
            time.sleep(0.001)  # the call that fails is about to tell its stack
            armed = Armed(*_HEAD.unpack_from(self._block))
        where = self._block[_HEAD.size :].rstrip(b"\0").decode(errors="replace")
        return bool(armed.fired), where

    @property
    def has_fired(self) -> bool:
        """Whether the fault was reached."""
        return bool(Armed(*_HEAD.unpack_from(self._block)).fired)

    def due(self, kind: str) -> int | None:
        """Count a call of *kind*; return the error number if it is the one that fails."""
        armed = Armed(*_HEAD.unpack_from(self._block))
        me = os.getpid()
        if armed.kind != _ORDER.index(kind) + 1 or armed.fired:
            return None
        if (armed.pid > 0 and armed.pid != me) or armed.pid == -me:
            return None
        if not _is_of_pparallel(sys._getframe(2)):
            return None
        count = next(self._counts.setdefault(armed.generation, itertools.count(1)))
        if count != armed.number:
            return None
        return armed.errno if self._fire(armed) else None

    def is_off(self) -> bool:
        """Whether nothing is armed: the first that each replaced function asks."""
        return not self._block[0]

    def _fire(self, armed: Armed) -> bool:
        """Say that the fault was reached; return False if it was disarmed before that was said.

        Who disarms it does so first and then looks here; this is the other way round. So none fires
        that was found not to be reached, however long a thread stands still in between.
        """
        self._block[_FIRED] = 1
        now = Armed(*_HEAD.unpack_from(self._block))
        if (now.kind, now.generation) != (armed.kind, armed.generation):
            self._block[_FIRED] = 0
            return False
        stack = "".join(traceback.format_stack(sys._getframe(3), 12)).encode()[-_WHERE:]
        self._block[_HEAD.size : _HEAD.size + len(stack)] = stack
        struct.pack_into("=I", self._block, _REACHED, armed.number)
        return True

    def error(self) -> int:
        """Return the error number that is armed."""
        return Armed(*_HEAD.unpack_from(self._block)).errno


def _is_of_pparallel(frame: FrameType | None) -> bool:
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("pparallel") and name != __name__:
            return not name.startswith(("pparallel.testing.anomalies", "pparallel.testing.left"))
        frame = frame.f_back
    return False


_switch: Switch | None = None


def install(path: str | None = None) -> Switch:
    """Replace the entry points in this process, once; return the switch.

    Args:
        path: the file of the switch; by default what the environment names.
    """
    global _switch
    if _switch is None:
        _switch = Switch(path or os.environ[VARIABLE])
        for kind, owner, names in _PLAIN:
            for each in names:
                _replace(_switch, owner, each, kind, _always)
        _install_sockets(_switch)
        _install_files(_switch)
        _install_types(_switch)
    return _switch


def replace(owner: Any, name: str, kind: str) -> None:
    """Let calls of an entry point fail with *kind*: for the libraries that a plugin uses.

    Args:
        owner: a module or class.
        name: of the function or method in it.
        kind: one of :data:`KINDS`.
    """
    if _switch is not None:
        _replace(_switch, owner, name, kind, _always)


def _always(error: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


Fits = Callable[[int, tuple[Any, ...], dict[str, Any]], bool]

_PLAIN: list[tuple[str, Any, tuple[str, ...]]] = [
    ("descriptor", os, ("pipe", "pipe2", "dup", "eventfd", "memfd_create", "pidfd_open")),
    ("descriptor", os, ("listdir", "scandir")),
    ("descriptor", select, ("epoll",)),
    ("descriptor", socket, ("socketpair",)),
    ("thread", threading, ("_start_new_thread", "_start_joinable_thread")),
    ("thread", importlib.import_module("_thread"), ("start_new_thread",)),
    ("fork", os, ("fork", "posix_spawn")),
    ("fork", importlib.import_module("_posixsubprocess"), ("fork_exec",)),
    ("fork", importlib.import_module("subprocess"), ("_fork_exec",)),
    ("mmap", os, ("ftruncate", "posix_fallocate")),
    ("memory", marshal, ("dumps", "loads")),
    ("memory", pickle, ("dumps", "loads")),
    ("disk", os, ("fsync", "fdatasync", "mkdir", "mkfifo", "link", "rename", "replace")),
]


def _replace(switch: Switch, owner: Any, name: str, kind: str, fits: Fits) -> None:
    if (original := getattr(owner, name, None)) is None:
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        if switch.is_off() or not fits(switch.error(), args, kwargs):
            return original(*args, **kwargs)
        if (error := switch.due(kind)) is not None:
            _fail(kind, error, args)
        return original(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    setattr(owner, name, call)


def _fail(kind: str, error: int, args: tuple[Any, ...]) -> None:
    """Raise what a call raises; or return, and it is made, and finds the end of the connection.

    On a Unix socket the kernel reports a reset only of an end that was closed before it had read
    all. Here that end lives, and may have read it, or may yet; and what has come is received first.
    """
    if kind == "thread":
        raise RuntimeError("can't start new thread")
    if kind == "memory":
        raise MemoryError("injected")
    if error in BROKEN and args and isinstance(args[0], socket.socket):
        ends = error == errno.ECONNRESET and args[0].family == socket.AF_UNIX
        if not (ends and _has_something(args[0])):
            with suppress(OSError):
                args[0].shutdown(socket.SHUT_RDWR)  # the other end sees it too
        if ends:
            return
    raise OSError(error, f"{os.strerror(error)} (injected)")


def _has_something(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


# -- sockets ----------------------------------------------------------------------------------


def _install_sockets(switch: Switch) -> None:
    one = socket.socket
    for name in ("send", "sendmsg", "sendall", "sendto"):
        _replace(switch, one, name, "send", _can_happen)
    for name in ("recv", "recv_into", "recvmsg_into", "recvfrom"):
        _replace(switch, one, name, "recv", _can_happen)
    _replace(switch, os, "write", "send", _goes_to_a_peer)
    _replace(switch, os, "read", "recv", _goes_to_a_peer)
    _replace(switch, one, "_accept", "accept", _always)
    _replace(switch, one, "_accept", "descriptor", _always)
    _replace(switch, one, "dup", "descriptor", _always)
    _replace(switch, one, "__init__", "descriptor", lambda _, args, given: _is_new(args, given))
    _replace_recvmsg(switch)


def _can_happen(error: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a socket may fail so: a blocking one never would block."""
    if error != errno.EAGAIN:
        return True
    flags = [each for each in (*args[1:], *kwargs.values()) if isinstance(each, int)]
    return args[0].gettimeout() == 0 or any(each & socket.MSG_DONTWAIT for each in flags)


def _goes_to_a_peer(error: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode = os.fstat(args[0]).st_mode
    if stat.S_ISSOCK(mode):
        return error != errno.EAGAIN or not os.get_blocking(args[0])
    if error == errno.EAGAIN:
        return stat.S_ISFIFO(mode) and not os.get_blocking(args[0])
    return stat.S_ISFIFO(mode) and error != errno.ECONNRESET


def _is_new(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("fileno", args[4] if len(args) > 4 else None) is None


def _replace_recvmsg(switch: Switch) -> None:
    """Let rights that are received be cut off: the kernel's way to be out of descriptors."""
    _replace(switch, socket.socket, "recvmsg", "recv", _can_happen)
    original: Any = socket.socket.recvmsg

    def recvmsg(self: socket.socket, size: int, ancillary: int = 0, flags: int = 0) -> Any:
        data, rights, how, address = original(self, size, ancillary, flags)
        if rights and not switch.is_off() and switch.due("descriptor") is not None:
            for _, _, numbers in rights:
                for (each,) in struct.iter_unpack("i", numbers[: len(numbers) // 4 * 4]):
                    os.close(each)
            return data, [], how | socket.MSG_CTRUNC, address
        return data, rights, how, address

    setattr(socket.socket, "recvmsg", recvmsg)  # noqa: B010 - mypy forbids the assignment


# -- files, and types that are subclassed rather than wrapped ---------------------------------


def _install_files(switch: Switch) -> None:
    _replace(switch, os, "open", "descriptor", _always)
    _replace(switch, os, "open", "disk", lambda _, args, given: bool(_flags(args, given)))
    _replace(switch, os, "write", "disk", _goes_to_a_file)
    _replace(switch, os, "pwrite", "disk", _goes_to_a_file)
    for owner in (builtins, io):
        _replace(switch, owner, "open", "descriptor", _always)
        _replace(switch, owner, "open", "disk", lambda _, args, given: _writes(args, given))


def _flags(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    flags: int = args[1] if len(args) > 1 else kwargs.get("flags", 0)
    return flags & os.O_CREAT


def _writes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
    return bool(set(mode) & set("wax+"))


def _goes_to_a_file(error: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return stat.S_ISREG(os.fstat(args[0]).st_mode)


def _install_types(switch: Switch) -> None:
    class Memory(mmap.mmap):
        def __new__(cls, *args: Any, **kwargs: Any) -> Memory:
            if not switch.is_off() and switch.due("mmap") is not None:
                raise OSError(errno.ENOMEM, f"{os.strerror(errno.ENOMEM)} (injected)")
            return super().__new__(cls, *args, **kwargs)

    class Connection(sqlite3.Connection):
        @override
        def execute(self, *args: Any) -> sqlite3.Cursor:
            writes = str(args[0]).lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE", "COMMIT")
            if writes and not switch.is_off() and switch.due("disk") is not None:
                raise _full()
            return super().execute(*args)

        @override
        def commit(self) -> None:
            if not switch.is_off() and switch.due("disk") is not None:
                raise _full()
            super().commit()

    connect = sqlite3.connect
    mmap.mmap = Memory  # type: ignore[misc]
    sqlite3.connect = lambda *args, **given: connect(*args, **{"factory": Connection, **given})
    _replace(switch, sqlite3, "connect", "descriptor", _always)


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
    return error


# -- the real limit ---------------------------------------------------------------------------


@contextmanager
def few_descriptors(pid: int, spare: int) -> Iterator[None]:
    """Lower the limit of process *pid* so that it can open *spare* more descriptors."""
    import resource

    folder = f"/proc/{pid}/fd"
    # To list it takes a descriptor, which is there no more.
    used = {int(each) for each in os.listdir(folder) if os.path.lexists(f"{folder}/{each}")}
    free = (number for number in itertools.count() if number not in used)
    limit = next(itertools.islice(free, spare, None))
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


if VARIABLE in os.environ:  # a process that the harness has started, or a fork server's child
    install()
