"""What an ordered server's file looks like, how it comes to be, and what is refused."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pparallel.errors import ConfigError
from pparallel_servers.sqlite.faults import is_no_database
from pparallel_servers.sqlite.patience import patiently

MARK = int.from_bytes(b"ppos", "big")  #: the application_id in the header of our files
FORMAT = 1  #: of the tables; raised when an older pparallel could not read them

PAGE = 1 << 15  #: bytes; large pages make large values quicker, and small ones hardly slower
LOG = 16 << 20  #: bytes of log after which a push carries it over into the file
LOG_KEPT = 64 << 20  #: bytes of log that stay on the disk after a larger one
MAPPED = 1 << 31  #: bytes of the file that are read where the system has cached them

_TABLES = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # A larger id is a later push. A value has its bytes in ``data``, or in pieces.
    "CREATE TABLE held (id INTEGER PRIMARY KEY, key BLOB NOT NULL, version BLOB NOT NULL,"
    " lengths BLOB NOT NULL, data BLOB)",
    "CREATE INDEX held_by_key ON held (key)",
    "CREATE TABLE piece (id INTEGER PRIMARY KEY, data BLOB NOT NULL)",
)


@dataclass(frozen=True)
class Options:
    """How a file is used.

    Attributes:
        synchronous: ``full`` or ``normal``, as sqlite's PRAGMA of that name.
        timeout: seconds to wait for other processes that have the file locked.
        poll: seconds between two looks for what other processes pushed.
    """

    synchronous: str
    timeout: float
    poll: float


def connect(path: Path, options: Options, *, create: bool = False) -> sqlite3.Connection:
    """Return a connection to the file; it is made with the first statement, if *create* says so."""
    mode = "rwc" if create else "rw"
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=0,  # sqlite's own pauses grow to a tenth of a second: see patience.py
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = _text
    settings = {
        "synchronous": options.synchronous,
        "secure_delete": "OFF",
        "wal_autocheckpoint": LOG // PAGE,
        "journal_size_limit": LOG_KEPT,
        "mmap_size": MAPPED,
    }
    script = [f"PRAGMA {name} = {value}" for name, value in settings.items()]
    script.append("PRAGMA user_version")  # which reads: from here on there is a log beside the file
    try:
        patiently(lambda: [connection.execute(each) for each in script], options.timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_first(path: Path, options: Options) -> sqlite3.Connection:
    """Return a connection to the file, which is ours and can be written; made if there is none.

    Nothing is written to a file that is another's.

    Raises:
        ConfigError: it is no file of an ordered server, or of a later one.
        sqlite3.Error: it cannot be read or written.
    """
    try:
        connection = connect(path, options, create=True)
        try:
            _prepare(connection, path, options)
        except BaseException:
            connection.close()
            raise
    except sqlite3.DatabaseError as error:
        if is_no_database(error):
            message = f"{path} is no sqlite file: give the path of a new file"
            raise ConfigError(message) from error
        raise
    return connection


def serializer_of(connection: sqlite3.Connection) -> str | None:
    """Return the name of the serializer that wrote the values, ``None`` if there is none yet."""
    found = connection.execute("SELECT value FROM about WHERE name = 'serializer'").fetchone()
    return None if found is None else str(found[0])


def keep_serializer(connection: sqlite3.Connection, name: str) -> None:
    """Note which serializer writes the values."""
    connection.execute("INSERT INTO about (name, value) VALUES ('serializer', ?)", (name,))


def _text(data: bytes) -> str:
    """Return a text of a damaged file, too: bytes that are no UTF-8 stay visible."""
    return data.decode("utf-8", "backslashreplace")


def _prepare(connection: sqlite3.Connection, path: Path, options: Options) -> None:
    if patiently(lambda: _seems_new(connection, path), options.timeout):
        connection.execute(f"PRAGMA page_size = {PAGE}")
        patiently(lambda: _keep_a_log(connection, path), options.timeout)
    patiently(lambda: connection.execute("BEGIN IMMEDIATE"), options.timeout)
    if _is_new(connection, path):
        _create(connection)
        connection.execute("COMMIT")
    else:
        # Of a file that is read only, a transaction that is to write begins like any other.
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("ROLLBACK")


def _seems_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Return what :func:`_is_new` does, of the file as it is at one moment."""
    connection.execute("BEGIN")
    try:
        return _is_new(connection, path)
    finally:
        connection.execute("ROLLBACK")


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether nothing has been written yet; refuse what somebody else has."""
    mark, number = _pragma(connection, "application_id"), _pragma(connection, "user_version")
    if mark == MARK and number == FORMAT:
        return False
    if mark == MARK:
        message = (
            f"{path} has format {number}, and this pparallel reads format {FORMAT}:"
            " upgrade pparallel"
        )
        raise ConfigError(message)
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if mark or number or tables:
        message = f"{path} is an sqlite file of another program: give the path of a new file"
        raise ConfigError(message)
    return True


def _keep_a_log(connection: sqlite3.Connection, path: Path) -> None:
    mode = _pragma(connection, "journal_mode = WAL")
    if mode != "wal":
        message = (
            f"{path} is where processes cannot share memory (sqlite keeps no write-ahead log"
            f" there, but {mode!r}): put it on a local disk"
        )
        raise ConfigError(message)


def _create(connection: sqlite3.Connection) -> None:
    for sql in _TABLES:
        connection.execute(sql)
    connection.execute(f"PRAGMA application_id = {MARK}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _pragma(connection: sqlite3.Connection, text: str) -> Any:
    return connection.execute(f"PRAGMA {text}").fetchone()[0]
