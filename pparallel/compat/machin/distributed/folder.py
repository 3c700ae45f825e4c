"""The folder where members that are started by hand find one another: this user's alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pparallel.errors import ConfigError
from pparallel.runtime import links
from pparallel.runtime.processes import close_private, private

_ROOM = 90  #: bytes of a path, so that it fits in the kernel's 108


def path_of(name: str) -> Path:
    """Return where rank 0 of a world listens."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > _ROOM - 50:
        parent = "/tmp"
    return Path(parent) / f"pparallel-machin-{os.geteuid()}" / name


@contextmanager
def listening(name: str) -> Iterator[socket.socket]:
    """Listen there, as long as this is open; what a dead process has left is replaced.

    Raises:
        ConfigError: another process that lives listens there, or the folder is not this user's
            alone.
    """
    path, sock = path_of(name), private(lambda: socket.socket(socket.AF_UNIX))
    try:
        with _alone_in(path):
            _bind(sock, path)
            sock.listen(socket.SOMAXCONN)
        try:
            yield sock
        finally:
            with _alone_in(path):
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # other worlds meet there too
                    path.parent.rmdir()
    finally:
        close_private(sock)


def connect(name: str) -> socket.socket | None:
    """Return a connection with who listens there; ``None``: nobody does.

    It is private: see :func:`~pparallel.runtime.processes.close_private`.

    Raises:
        AuthenticationError: another user does.
        ConfigError: the folder is not this user's alone.
    """
    path, sock = path_of(name), private(lambda: socket.socket(socket.AF_UNIX))
    try:
        _check_private(path.parent)
        sock.connect(os.fspath(path))
        peer(sock)
    except (FileNotFoundError, ConnectionError):
        close_private(sock)
        return None
    except BaseException:
        close_private(sock)
        raise
    return sock


def peer(sock: socket.socket) -> int | None:
    """Return the process at the other end; ``None`` where the system does not say.

    Raises:
        AuthenticationError: it is another user's.
    """
    # Where it does not, the folder lets nobody else in.
    return links.peer(sock) if hasattr(socket, "SO_PEERCRED") else None


@contextmanager
def _alone_in(path: Path) -> Iterator[None]:
    """Keep other processes from listening, and from ending to, in the folder of *path*."""
    while True:
        # Not Path.mkdir(exist_ok=True): it fails where another removes the folder meanwhile.
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        try:
            _check_private(path.parent)
            descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # removed by another
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:  # else it has been removed meanwhile
                yield
                return
        finally:
            os.close(descriptor)


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or stat.S_IMODE(found.st_mode) & 0o077:
        message = f"{folder} is not this user's alone: remove it, or set TMPDIR to another folder"
        raise ConfigError(message)


def _bind(sock: socket.socket, path: Path) -> None:
    try:
        sock.bind(os.fspath(path))
    except OSError:
        if not path.exists():
            raise
        other = connect(path.name)
        if other is not None:
            try:
                message = (
                    f"process {peer(other)} is rank 0 of a world that meets at these ports just "
                    "now: give this world another port in dist_init_method or rpc_init_method, "
                    "the same in all of its members"
                )
            finally:
                close_private(other)
            raise ConfigError(message, path="dist_init_method") from None
        path.unlink()  # its owner has died
        sock.bind(os.fspath(path))
