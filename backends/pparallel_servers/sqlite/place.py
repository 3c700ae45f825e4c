"""One file, as the ordered servers of this process use it."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel_servers.sqlite.faults import damaged, fault, is_busy, locked
from pparallel_servers.sqlite.file import Options, connect, connect_first
from pparallel_servers.sqlite.gate import Gate
from pparallel_servers.sqlite.log import Log
from pparallel_servers.sqlite.patience import patiently
from pparallel_servers.sqlite.watch import Watch

KEPT = 4  #: connections that are kept while nobody uses them

Identity = tuple[int, int]  #: device and inode


class Place:
    """Connections to one file, each lent to one thread at a time.

    Attributes:
        identity: of the file; where the path leads to another, it was removed or replaced.
        options: how it is used.
        users: how many servers of this process use it.
        watch: wakes who waits for a push.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.users = 0
        self.options = options
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._looker: sqlite3.Connection | None = None
        self._seen: int | None = None
        self._is_closed = False
        self._log = Log(path)
        self.renew()
        with self._telling():
            self._idle.append(connect_first(path, options))
        self.identity = identity(path)

    @override
    def __str__(self) -> str:
        return str(self._path)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection that sees the file as it is now, whatever is pushed meanwhile."""
        with self._telling(), self._gate, self._lent() as connection:
            patiently(lambda: _read(connection), self.options.timeout)
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Lend the one connection that may change the file; all that it does is kept, or nothing.

        Threads take turns here, processes at the log.
        """
        timeout = self.options.timeout
        with (
            self._telling(),
            self._gate,
            self._in_turn(),
            self._lent() as connection,
            self._log.held(timeout),
        ):
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), timeout)
            yield connection
            connection.execute("COMMIT")
            self._log.tend(connection)

    def suspend(self) -> None:
        """Have no connection open, once those in use are given back, until :meth:`resume`."""
        self._gate.shut(self.options.timeout)
        idle, self._idle = self._idle, []
        looker, self._looker = self._looker, None
        for each in (*idle, looker):
            if each is not None:
                each.close()

    def resume(self) -> None:
        """Let connections be opened again."""
        self._gate.reopen()

    def close(self) -> None:
        """Let nobody use it any more."""
        self._is_closed = True
        self.suspend()
        self.resume()

    def renew(self) -> None:
        """Have new locks: in a fork, threads that are not there may hold the old ones."""
        self._gate = Gate()
        self._turn = threading.Lock()
        self.watch = Watch(self._has_changed_elsewhere, self.options.poll)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=self.options.timeout):
            raise locked(self._path, self.options.timeout)
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _lent(self) -> Iterator[sqlite3.Connection]:
        connection = self._taken()
        try:
            self._check()
            yield connection
        except BaseException:
            connection.close()  # which undoes what was not committed
            raise
        if len(self._idle) < KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    def _taken(self) -> sqlite3.Connection:
        with suppress(IndexError):
            return self._idle.pop()
        self._check()
        return connect(self._path, self.options)

    def _has_changed_elsewhere(self) -> bool:
        """Return whether another process may have committed something since the last call."""
        with self._telling(), self._gate:
            self._check()
            if self._looker is None:
                self._looker = connect(self._path, self.options)
                self._seen = None
            try:
                # Of this connection alone: the number means nothing to another.
                (number,) = self._looker.execute("PRAGMA data_version").fetchone()
            except sqlite3.OperationalError as error:
                if is_busy(error):
                    return False
                raise
            seen, self._seen = self._seen, number
            return bool(number != seen)

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("the ordered server")
        if identity(self._path) != self.identity:
            why = "the file of an ordered server was removed or replaced while it was in use"
            raise FileNotFoundError(errno.ENOENT, why, str(self._path))

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise fault(self._path, error, self.options.timeout) from error
        except UnicodeDecodeError as error:  # what sqlite says quotes a damaged table's name
            raise damaged(self._path, error.object.decode("utf-8", "backslashreplace")) from error
        except BlockingIOError as error:
            raise locked(self._path, self.options.timeout) from error


def identity(path: Path) -> Identity | None:
    """Return what tells the file at *path* from others, ``None`` if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _read(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    try:
        connection.execute("PRAGMA user_version").fetchone()  # from here on nothing changes
    except sqlite3.Error:
        connection.execute("ROLLBACK")
        raise
