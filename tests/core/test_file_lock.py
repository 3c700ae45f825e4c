"""A lock in the form of a file: between threads, processes, and past their deaths."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pparallel.runtime.file_lock import locked
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads

HOLD = """
import sys
from pathlib import Path
from pparallel.runtime.file_lock import locked
with locked(Path(sys.argv[1]), 1):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_one_thread_holds_it_at_a_time(path: Path) -> None:
    inside: list[int] = []

    def work(thread: int) -> None:
        for _ in range(20):
            with locked(path, PATIENCE):
                inside.append(thread)
                assert inside == [thread]
                inside.remove(thread)

    in_threads(4, work)


def test_it_is_let_go_of_after_an_exception(path: Path) -> None:
    with pytest.raises(KeyError), locked(path, 0):
        raise KeyError
    with locked(path, 0):
        assert path.exists()


def test_one_who_waits_too_long_is_told(path: Path) -> None:
    with locked(path, 0), pytest.raises(TimeoutError, match=r"for 0\.01 s") as caught:
        in_threads(1, lambda _: locked(path, 0.01).__enter__())
    assert (caught.value.errno, caught.value.filename) == (errno.ETIMEDOUT, str(path))


def test_one_who_holds_it_waits_for_itself(path: Path) -> None:
    with locked(path, 0), pytest.raises(TimeoutError, match="kept it locked"), locked(path, 0):
        pass


def test_a_folder_that_is_not_there(path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(path / "lock", 1):
        pass


def test_a_process_that_dies_lets_go_of_it(path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TimeoutError, match="kept it locked"), locked(path, 0):
            pass
        holder.send_signal(signal.SIGKILL)
        with locked(path, PATIENCE):
            pass


def test_a_fork_does_not_keep_it(path: Path) -> None:
    """A child that was forked while the lock was held has the descriptor too."""
    reading, writing = os.pipe()
    with locked(path, 0):
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=reading,
            close_fds=False,
        )
    try:
        with locked(path, 0):
            assert child.poll() is None
    finally:
        os.close(reading)
        os.close(writing)
        child.wait(PATIENCE)


def test_those_who_wait_get_it_when_it_is_free(path: Path) -> None:
    taken = threading.Event()

    def wait() -> None:
        with locked(path, PATIENCE):
            taken.set()

    waiter = threading.Thread(target=wait)
    with locked(path, 0):
        waiter.start()
        assert not taken.wait(0.05)
    waiter.join(PATIENCE)
    assert taken.is_set()
