"""What other processes do with an ordered server's file; each tells its test by *say*.

Run as ``python sqlite_programs.py NAME ARGUMENTS`` too, where a test needs another user or its own
mounts.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pparallel
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.testing.ordered_server.programs import count_up
from pparallel.testing.patience import PATIENCE
from pparallel_servers import SqliteOrderedServerConfig

Say = Callable[..., object]

NOBODY = 65534  #: the number of a user who owns nothing
SIZES = (10, 5000, 300_000, 2_000_000)  #: bytes of values: in their row, in a piece, in more


def server_at(path: str | Path, **options: Any) -> OrderedServer:
    return pparallel.build(SqliteOrderedServerConfig(path=Path(path), **options))


def value_of(version: int) -> dict[str, Any]:
    """Return what is pushed as *version*, which can be told from any other."""
    size = random.Random(version).choice(SIZES)
    return {"version": version, "data": random.Random(-version).randbytes(size)}


def push_for_ever(say: Say, path: str) -> None:
    """Go on from the newest version, and say each that was acknowledged."""
    with server_at(path, version_depth=2) as server:
        found = server.pull("k")
        version = 0 if found is None else found[0]["version"]
        while True:
            assert server.push("k", value_of(version + 1), version + 1, version or None)
            version += 1
            say(version)


def count(say: Say, path: str, times: int) -> None:
    """Add to a number to which others add."""
    with server_at(path) as server:
        count_up(server, "number", times)
    say("done")


def push_slowly(say: Say, path: str) -> None:
    """Hold the file, in the middle of a push, for ever."""
    with server_at(path) as server:
        place = server._client._place  # type: ignore[attr-defined]
        with place.writing() as connection:
            connection.execute("DELETE FROM held")
            say("inside")
            threading.Event().wait()


def answer(say: Say, path: str) -> None:
    """Answer each question with itself, until there is the last."""
    with server_at(path) as server:
        say("here")
        answered = 0
        while (found := server.wait("question", answered or None, PATIENCE)) is not None:
            if found[0] == "end":
                return
            assert server.push("answer", found[0], answered + 1, answered or None)
            answered += 1


def fork_and_end(say: Say, path: str, said: str, go: str) -> None:
    """Fork while the file is in use; the child uses it further when its parent is gone."""
    server = server_at(path)
    server.open()
    assert server.push("k", "by the parent", 1, None)
    waiter = threading.Thread(target=server.wait, args=("other", None, PATIENCE), daemon=True)
    waiter.start()
    if os.fork():
        say(os.getpid())
        server.close()
        return
    assert server.push("k", "by the child", 2, 1)
    Path(said).write_text("2")
    with Path(go).open() as pipe:  # until the test has opened and closed the file
        pipe.read()
    assert server.push("k", "by the child alone", 3, 2)
    server.close()
    Path(said).write_text("3")
    os._exit(0)


def fork_often(say: Say, path: str, rounds: int) -> None:
    """Fork while other threads push; each child pushes too."""
    with server_at(path, synchronous="normal") as server:
        done = threading.Event()

        def push() -> None:
            while not done.is_set():
                count_up(server, "parent", 1)

        threads = [threading.Thread(target=push) for _ in range(2)]
        for each in threads:
            each.start()
        for _ in range(rounds):
            if not (pid := os.fork()):
                count_up(server, "children", 1)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        done.set()
        for each in threads:
            each.join()
        say(server.pull("children"))


# -- as another user, or with other mounts ----------------------------------------------------


def told(act: Callable[[], object]) -> str:
    """Return what *act* raises."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def open_it(path: str) -> None:
    """Print how opening the file ends."""
    print(told(lambda: server_at(path).open()))  # noqa: T201 - the test reads it


def open_as_somebody(path: str, scratch: str) -> None:
    """As :func:`open_it`, as a user that is held to permissions."""
    with server_at(Path(scratch, "other.db")) as server:  # so that all is imported
        server.keys()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    open_it(path)


def without_descriptors(path: str) -> None:
    """Print how opening the file ends where this process may open nothing more."""
    with server_at(path) as server:
        server.keys()
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.dup(0))
    said = told(lambda: server_at(path).open())
    for each in taken:
        os.close(each)
    print(said)  # noqa: T201 - the test reads it


def read_only_system(folder: str) -> None:
    """Print how opening a file ends on a file system that was mounted again, to be read only."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    path = Path(folder, "values.db")
    with server_at(path) as server:
        assert server.push("k", 1, 1, None)
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    open_it(str(path))


def full_disk(folder: str) -> None:
    """Print how a push ends that the disk has no room for, and the opening of a new file there."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
    path = Path(folder, "values.db")
    with server_at(path, version_depth=2) as server:
        assert server.push("k", b"a" * 100_000, 1, None)
        assert server.push("k", b"b" * 100_000, 2, 1)
        print(told(lambda: server.push("k", bytes(16 << 20), 3, 2)))  # noqa: T201
        assert server.versions("k") == [1, 2]
        assert server.pull("k") == (b"b" * 100_000, 2)
        assert server.pull("k", 1) == (b"a" * 100_000, 1)
        assert server.push("k", b"c" * 100_000, 3, 2), "there is room for a small one still"
        with Path(folder, "fill").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        versions = [3]
        while told(lambda: server.push("k", b"d" * 500_000, versions[-1] + 1, versions[-1])) == (
            "nothing was raised"
        ):
            versions.append(versions[-1] + 1)
            assert len(versions) < 100, "the disk is full, and yet all is pushed"
        assert server.versions("k")[-1] == versions[-1]
    with server_at(path, version_depth=2) as server:
        assert server.versions("k")[-1] == versions[-1]
    open_it(str(Path(folder, "new.db")))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
