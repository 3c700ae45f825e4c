"""Processes that use an ordered server's file, and what is true of it when they were killed."""

from __future__ import annotations

import sqlite3
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path

from process_children import child, line
from sqlite_programs import server_at, value_of

from pparallel.runtime.processes import Process
from pparallel.testing.patience import PATIENCE


def running(name: str, *args: object) -> AbstractContextManager[tuple[Process, int]]:
    """Run a program of ``sqlite_programs`` in a process."""
    code = f"import sqlite_programs; sqlite_programs.{name}(say, *{args!r})"
    return child(code, preload=("sqlite_programs",))


def assert_whole(path: Path) -> None:
    """Fail if the file is damaged, or holds pieces of no value."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute(
            "SELECT count(*) FROM piece WHERE id >> 20 NOT IN (SELECT id FROM held)"
        ).fetchone()
        assert rows == (0,), "pieces of no value are left"


def survives_a_kill(path: Path, newest: int, pushes: int, later: float = 0.0) -> int:
    """Kill a process that pushes without end, and check what it left; return the newest version.

    Args:
        path: the file.
        newest: the version from which the process goes on.
        pushes: how many are acknowledged before the kill.
        later: seconds between these and the kill.
    """
    with running("push_for_ever", str(path)) as (process, reader):
        acknowledged = [int(line(reader)) for _ in range(pushes)]
        time.sleep(later)
        process.signal(9)
        assert process.ended(PATIENCE) is not None
        acknowledged += [int(said) for said in iter(lambda: line(reader), "")]
    assert acknowledged == list(range(newest + 1, newest + 1 + len(acknowledged)))
    with server_at(path, version_depth=2) as server:
        held = server.versions("k")
        assert held[-1] - acknowledged[-1] in (0, 1), "only one more may have been stored"
        assert held == [each for each in (held[-1] - 1, held[-1]) if each]
        for version in held:
            assert server.pull("k", version) == (value_of(version), version)
    assert_whole(path)
    return int(held[-1])
