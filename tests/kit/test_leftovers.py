"""What a test leaves behind is found, and what is other programs' is let be."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from process_children import child, line, outcome
from typing_extensions import override

from pparallel.runtime.processes import helpers
from pparallel.testing import Suite
from pparallel.testing.leftovers import Descriptor, Keeps, Leftover, no_leftovers

SHM = Path("/dev/shm")
ME = str(os.getpid())  #: part of the names of segments: others may run these tests too
OTHER = """
import mmap, os, sys
if os.fork():
    os._exit(0)  # the other is nobody's child
how, name, me = sys.argv[1:]
name = name.format(pid=os.getpid(), me=me)
print("ready", flush=True)
sys.stdin.readline()
path = f"/dev/shm/{name}"
file = open(path + ".new" if how == "renamed" else path, "x+b")
file.truncate(4096)
if how in ("mapped", "renamed"):
    mapped = mmap.mmap(file.fileno(), 4096)
if how == "renamed":  # as sem_open does
    os.link(path + ".new", path)
    os.unlink(path + ".new")
if how != "open":
    file.close()
print("made", flush=True)
sys.stdin.readline()
os.unlink(path)
print("gone", flush=True)
"""


@contextmanager
def another_program(how: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that is no descendant of this one, and makes a segment when told to."""
    command = [sys.executable, "-c", OTHER, how, name, ME]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as running:
        hears(running, "ready")
        running.wait()
        yield running


def hears(running: subprocess.Popen[str], word: str) -> None:
    assert running.stdout is not None
    assert running.stdout.readline() == f"{word}\n"


def tell(running: subprocess.Popen[str], answer: str) -> None:
    assert running.stdin is not None
    running.stdin.write("\n")
    running.stdin.flush()
    hears(running, answer)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("mapped", "mapped-{me}"),
        ("renamed", "renamed-{me}"),
        ("open", "open-{me}"),
        ("neither", "torch_{pid}_1_0"),
    ],
)
def test_a_segment_of_another_program_is_let_be(how: str, name: str) -> None:
    with another_program(how, name) as running:
        with no_leftovers(0.05):
            tell(running, "made")
        tell(running, "gone")


def test_a_segment_of_a_program_that_has_ended_is_let_be() -> None:
    code = "import os; open(f'/dev/shm/torch_{os.getpid()}_123_0', 'x'); print(os.getpid())"
    maker = ["setsid", "--fork", sys.executable, "-c", code]  # a program that is nobody's child
    with no_leftovers(0.05):
        done = subprocess.run(maker, stdout=subprocess.PIPE, text=True, check=True)
    (SHM / f"torch_{done.stdout.strip()}_123_0").unlink()


def test_a_segment_of_a_child_that_was_killed_is_found() -> None:
    code = "import os; open(f'/dev/shm/torch_{os.getpid()}_123_0', 'x'); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None
        found = pytest.raises(AssertionError, match=f"torch_{running.pid}_123_0")
        with found, no_leftovers(0.05):
            assert running.stdout.readline()
            running.kill()
            running.wait()
    (SHM / f"torch_{running.pid}_123_0").unlink()


def test_a_segment_of_ones_own_is_found() -> None:
    path = SHM / f"own-{ME}"
    found = pytest.raises(AssertionError, match=f"segment {path}")
    try:
        with found, no_leftovers(0.05):
            path.write_bytes(b"x")
    finally:
        path.unlink()


def test_a_fork_server_is_let_be_and_its_child_is_found() -> None:
    def leave(stack: ExitStack) -> None:
        code = "say('here'); import signal; signal.pause()"
        _, reader = stack.enter_context(child(code, name="found-in-tests"))
        assert line(reader) == "here"

    found = pytest.raises(AssertionError, match=r"process \d+ \(found-in-tests")
    with ExitStack() as stack, found, no_leftovers(0.05):
        leave(stack)
    with no_leftovers(0.05):
        outcome("pass", preload=["netrc"])
    assert all(helpers())


def test_what_belongs_to_something_else_is_kept() -> None:
    asked: list[Leftover] = []

    def keeps(left: Leftover) -> bool:
        asked.append(left)
        return isinstance(left, threading.Thread) and left.name.startswith("library-")

    go = threading.Event()
    threads = [threading.Thread(target=go.wait, name=name) for name in ("library-io", "ours")]
    found = pytest.raises(AssertionError, match=r"left behind: thread 'ours'$")
    try:
        with found, no_leftovers(0.05, keeps):
            for each in threads:
                each.start()
    finally:
        go.set()
        for each in threads:
            each.join()
    assert set(threads) <= set(asked)
    with ExitStack() as stack, no_leftovers(0.05, lambda left: isinstance(left, Descriptor)):
        stack.push(file := open(os.devnull))  # noqa: SIM115 - it is to be left
        stack.pop_all()
    file.close()


class TestSurroundings(Suite):
    """A suite's own fixture comes before the tests are watched, and says what is let be."""

    open_late: Callable[[], None]

    @override
    @pytest.fixture
    def features(self) -> frozenset[str]:
        return frozenset()

    @override
    @pytest.fixture
    def surroundings(self, tmp_path: Path) -> Iterator[Keeps]:
        late: list[int] = []
        self.open_late = lambda: late.append(os.open(tmp_path, os.O_RDONLY))
        early = os.open(tmp_path, os.O_RDONLY)
        yield lambda left: isinstance(left, Descriptor) and left.target == str(tmp_path)
        for each in (early, *late):
            os.close(each)

    def test_is_let_be(self) -> None:
        self.open_late()


def test_what_a_gpu_opens_for_good_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pparallel.testing.leftovers._GPU", f"{tmp_path}/device")
    with ExitStack() as opened:

        def open_event() -> None:
            opened.callback(os.close, os.eventfd(0))

        with no_leftovers(0.1):
            opened.callback(os.close, os.open(tmp_path / "device0", os.O_CREAT))
            open_event()
        found = pytest.raises(AssertionError, match=r"^left behind: descriptor \d+ of a anon_inode")
        with found, no_leftovers(0.1):
            open_event()
