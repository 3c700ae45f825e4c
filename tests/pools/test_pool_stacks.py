"""The stacks of a worker can be had whatever it does, and it is said when they cannot."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import pparallel
from pparallel.runtime.processes import Process, start
from pparallel.testing.patience import PATIENCE, until
from pparallel_process import ProcessPoolConfig
from pparallel_process.pool import ProcessPool
from pparallel_process.telling import stacks

WORKER = """
import ctypes, os, signal, threading
from pparallel_process.telling import stacks

def holds_the_gil(fd):
    libc, never = ctypes.PyDLL(None), os.pipe()[0]
    os.write(fd, b"!")
    libc.read(never, bytes(1), 1)

def computes(fd):
    os.write(fd, b"!")
    while True:
        pass

def has_threads(fd):
    def in_a_thread():
        os.write(fd, b"!")
        threading.Event().wait()
    threading.Thread(target=in_a_thread, daemon=True).start()
    threading.Event().wait()

def takes_the_signal(fd):
    signal.signal(stacks.SIGNAL, lambda *_: None)
    os.write(fd, b"!")
    while True:
        signal.pause()

def puts_the_default_back(fd):
    signal.signal(stacks.SIGNAL, signal.SIG_DFL)
    os.write(fd, b"!")
    signal.pause()

def run(payload, fds):
    stacks.register(fds[0])
    globals()[payload.decode()](fds[1])

def run_unregistered(payload, fds):
    os.write(fds[1], b"!")
    signal.pause()

def run_taken(payload, fds):
    import logging
    signal.signal(stacks.SIGNAL, lambda *_: None)
    stacks.register(fds[0])
    os.write(fds[1], b"!")
    while True:
        signal.pause()
"""

Started = Callable[..., tuple[Process, int]]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Start a worker; it is in the midst of what it does when this returns."""
    (tmp_path / "stacked_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    processes: list[Process] = []
    descriptors: list[int] = []

    def begin(what: str, function: str = "run") -> tuple[Process, int]:
        fd = os.memfd_create("stacks")
        ours, its = os.pipe()
        descriptors.extend((fd, ours, its))
        target = f"stacked_worker:{function}"
        process = start(target, what.encode(), (fd, its), name="worker-7")
        processes.append(process)
        assert os.read(ours, 1) == b"!"
        return process, fd

    yield begin
    for process in processes:
        with closing(process):
            process.signal(signal.SIGKILL)
            assert process.ended(PATIENCE) is not None
    for fd in descriptors:
        os.close(fd)


def in_state(process: Process, letters: str) -> bool:
    """Return whether each thread of *process* is in one of these states."""
    lines = [each.read_text() for each in Path(f"/proc/{process.pid}/task").glob("*/stat")]
    return all(line.rpartition(")")[2].split()[0] in letters for line in lines)


@pytest.mark.parametrize("what", ["computes", "holds_the_gil"])
def test_the_stack_of_a_worker_that_is_busy(what: str, started: Started) -> None:
    process, fd = started(what)
    for _ in range(2):
        text = stacks.dump(process, fd, PATIENCE)
        assert text.count("most recent call first") == 1
        assert f"in {what}\n" in text
        assert "in run\n" in text
        assert "runtime/processes" not in text
        assert text.endswith("\n")


def test_all_threads_are_shown(started: Started) -> None:
    process, fd = started("has_threads")
    # faulthandler crashes where another thread changes its frames meanwhile (cpython 116008).
    until(lambda: in_state(process, "S"), "its threads wait")
    text = stacks.dump(process, fd, PATIENCE)
    assert text.count("most recent call first") == 2
    assert "in in_a_thread\n" in text
    assert "in has_threads\n" in text


def test_a_worker_that_has_ended(started: Started) -> None:
    process, fd = started("computes")
    process.signal(signal.SIGKILL)
    assert process.ended(PATIENCE) is not None
    text = stacks.dump(process, fd)
    assert text == f"(no stacks of worker-7 {process.pid}: it has ended (signal 9))"


def test_a_worker_that_is_stopped(started: Started) -> None:
    process, fd = started("computes")
    process.signal(signal.SIGSTOP)
    until(lambda: in_state(process, "T"), "the worker stops")
    assert stacks.dump(process, fd).endswith(": it is stopped)")
    process.signal(signal.SIGCONT)
    until(lambda: not in_state(process, "T"), "the worker goes on")
    assert "in computes\n" in stacks.dump(process, fd, PATIENCE)


def test_a_task_that_takes_the_signal(started: Started) -> None:
    process, fd = started("takes_the_signal")
    text = stacks.dump(process, fd, timeout=0.1)
    assert "did not answer within 0.1 s" in text
    assert f"taken signal {int(stacks.SIGNAL)})" in text
    assert process.ended(0) is None


@pytest.mark.parametrize(
    ("what", "function"), [("puts_the_default_back", "run"), ("", "run_unregistered")]
)
def test_a_worker_that_the_signal_would_end(what: str, function: str, started: Started) -> None:
    process, fd = started(what, function)
    assert "it is starting, or" in stacks.dump(process, fd)
    assert process.ended(0) is None


def test_a_signal_that_is_taken_already_stays(started: Started) -> None:
    process, fd = started("", "run_taken")
    assert "did not answer" in stacks.dump(process, fd, timeout=0.1)
    assert process.ended(0) is None


def test_the_stacks_of_a_pool(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "event")
    with pparallel.build(ProcessPoolConfig(size=2)) as pool:
        assert isinstance(pool, ProcessPool)
        task = pool.submit((tmp_path / "event").read_text)
        until(lambda: "in read_text\n" in "".join(pool.stacks().values()), "the task is shown")
        shown = pool.stacks()
        (tmp_path / "event").write_text("go")
        assert task.result(PATIENCE) == "go"
    assert sorted(shown) == ["pool-worker-0", "pool-worker-1"]
    assert sum("in read_text\n" in each for each in shown.values()) == 1
    assert not any("reports.py" in each for each in shown.values())  # a thread of the worker's own
    assert pool.stacks() == {}
