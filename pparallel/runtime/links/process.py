"""Which process a member lives in, or is at the other end of a Unix socket."""

from __future__ import annotations

import functools
import hashlib
import os
import select
import socket
import struct
from typing import NamedTuple

from pparallel.errors import AuthenticationError

_CREDENTIALS = struct.Struct("3i")  #: pid, uid, gid
STOPPED = b"T"  #: by a signal; one that a debugger holds is "t", and is not given up


class ProcessId(NamedTuple):
    """A process, among those of all machines.

    Attributes:
        host_id: boot id and pid namespace, hashed to 16 bytes.
        pid: its number there.
        started: when it started, in the kernel's ticks: numbers are used again.
    """

    host_id: bytes
    pid: int
    started: int

    @classmethod
    def here(cls) -> ProcessId:
        """Return that of this process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return that of a process of this machine.

        Raises:
            ProcessLookupError: there is none.
        """
        found = look(pid)
        if found is None:
            raise ProcessLookupError(pid)
        return cls(_host_id(), pid, found[1])

    @property
    def watchable(self) -> bool:
        """Whether this process can watch it: it is on this machine, and another."""
        return self.pid != os.getpid() and self.host_id == _host_id()

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped it, as Ctrl-Z does."""
        return look(self.pid) == (STOPPED, self.started)

    def lives(self) -> bool:
        """Return whether it runs, and the number is not another's by now."""
        found = look(self.pid)
        return found is not None and found[1] == self.started and found[0] not in b"ZX"

    def ends_within(self, timeout: float) -> bool:
        """Return whether it has ended, waiting for that for *timeout* seconds."""
        if not self.watchable:
            return False
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            watch = select.poll()
            watch.register(pidfd, select.POLLIN)
            return not self.lives() or bool(watch.poll(timeout * 1000))
        finally:
            os.close(pidfd)


def look(pid: int) -> tuple[bytes, int] | None:
    """Return the state of a process and when it started; ``None``: there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The name before it may hold anything, brackets too.
            fields = file.read(4096).rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[19])


def peer(sock: socket.socket) -> int:
    """Return the process at the other end.

    Raises:
        AuthenticationError: it is another user's.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(raw)
    if user not in (os.geteuid(), 0):
        message = f"process {pid} of user {user} is not let in: members are of user {os.geteuid()}"
        raise AuthenticationError(message)
    return int(pid)


@functools.cache
def _host_id() -> bytes:
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return hashlib.sha256(b"%s %d" % (boot, namespace)).digest()[:16]
