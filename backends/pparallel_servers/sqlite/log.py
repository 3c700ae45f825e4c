"""The write-ahead log beside the file: who may write to it, and that it stays short."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pparallel_servers.sqlite.patience import patiently

logger = logging.getLogger(__name__)

LONGEST = 128 << 20  #: bytes after which readers have to wait until the log is carried over
PATIENCE = 1000  #: milliseconds to wait for readers of what is in the log


class Log:
    """The log of one file.

    sqlite carries it over into the file after a push, as far as nobody reads it, and begins it anew
    once nobody does. Where there is always somebody who reads, that never comes.

    Of several processes one at a time writes to it and carries it over. sqlite before 3.51.3 may
    lose what was committed where two do so at the same instant: "The WAL-Reset Bug" in
    https://sqlite.org/wal.html. The lock is one that sqlite does not use, on a file that it does
    not lock, and is gone with the process that holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}-wal")
        self._allowed = LONGEST

    @contextmanager
    def held(self, timeout: float) -> Iterator[None]:
        """Keep other processes from writing; the caller has a connection, so there is a log.

        Raises:
            BlockingIOError: another process has kept it for *timeout* seconds.
        """
        descriptor = patiently(self._lock, timeout)
        try:
            yield
        finally:
            os.close(descriptor)

    def tend(self, connection: sqlite3.Connection) -> None:
        """Begin the log anew if it is long; nothing is lost where that fails."""
        if self._path.stat().st_size <= self._allowed:
            self._allowed = max(LONGEST, self._allowed // 2)
            return
        try:
            connection.execute(f"PRAGMA busy_timeout = {PATIENCE}")
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            connection.execute("PRAGMA busy_timeout = 0")
        except sqlite3.OperationalError as error:
            logger.warning("%s cannot be carried over: %s", self._path, error)
            busy = True
        if busy:  # somebody is stopped while it reads: not every push is to wait for it
            self._allowed = 2 * self._path.stat().st_size

    def _lock(self) -> int:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
