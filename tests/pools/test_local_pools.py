"""What becomes of serial and thread pools at moments that a program seldom hits."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Bar, Pool, PoolConfig
from pparallel.runtime.threads import SharedJob, SingleJob
from pparallel.testing.patience import PATIENCE, until
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_local.serial_pool import SerialPool
from pparallel_local.thread_pool import ThreadPool

Local = type[SerialPoolConfig] | type[ThreadPoolConfig]
LOCAL: list[Local] = [SerialPoolConfig, ThreadPoolConfig]


def double(number: int) -> int:
    return 2 * number


def opened(config: PoolConfig) -> Any:
    pool = pparallel.build(config)
    pool.open()
    return pool


# -- threads --------------------------------------------------------------------------------------


def test_a_map_that_is_ended_halfway_does_not_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker ends its task, and with it the job, between the two halves of the abort."""
    started, release, forgotten = (threading.Event() for _ in range(3))
    drain, forget = SharedJob.drain, ThreadPool._forget

    def drain_and_wait(job: SharedJob) -> None:
        drain(job)
        release.set()
        assert forgotten.wait(PATIENCE)

    def forget_and_tell(pool: ThreadPool, job: SingleJob) -> None:
        forget(pool, job)
        forgotten.set()

    def wait(_: int) -> None:
        started.set()
        assert release.wait(PATIENCE)

    monkeypatch.setattr(SharedJob, "drain", drain_and_wait)
    monkeypatch.setattr(ThreadPool, "_forget", forget_and_tell)
    with pparallel.build(ThreadPoolConfig(size=1)) as pool:
        result = pool.map_async(wait, range(3))
        assert started.wait(PATIENCE)
        pool.terminate()
        with pytest.raises(ClosedError, match="was terminated"):
            result.get(PATIENCE)


# -- the serial pool ------------------------------------------------------------------------------


def test_terminate_wakes_those_who_join_a_serial_pool() -> None:
    running, release, joining = (threading.Event() for _ in range(3))
    pool: SerialPool = opened(SerialPoolConfig())

    class Waited(threading.Condition):
        @override
        def wait(self, timeout: float | None = None) -> bool:
            joining.set()
            return super().wait(timeout)

    def task() -> None:
        running.set()
        assert release.wait(PATIENCE)

    pool._idle = Waited(threading.Lock())
    caller = threading.Thread(target=pool.apply, args=(task,))
    caller.start()
    assert running.wait(PATIENCE)
    pool.close()
    joiner = threading.Thread(target=pool.join)
    joiner.start()
    assert joining.wait(PATIENCE)
    pool.terminate()
    joiner.join(PATIENCE)
    joined = not joiner.is_alive()
    release.set()
    caller.join()
    joiner.join()
    assert joined
    with pytest.raises(ClosedError, match="was terminated"):
        pool.map(double, [1])


def test_a_task_of_a_serial_pool_that_joins_it() -> None:
    pool = opened(SerialPoolConfig())

    def task() -> None:
        pool.close()
        pool.join()

    with pytest.raises(RuntimeError, match=r"a task of SerialPool.* would wait for itself"):
        pool.apply(task)
    pool.join()


# -- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOCAL)
def test_an_initializer_that_exits_fails_the_tasks(kind: Local) -> None:
    with pparallel.build(kind(size=1, initializer=sys.exit, initargs=(3,))) as pool:  # noqa: SIM117
        with pytest.raises(SystemExit):
            pool.submit(double, 1).result(PATIENCE)


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("what", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_at_the_end_of_with_terminates(
    kind: Local, what: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[ABar] = []

    class ABar:
        closed = False

        def __init__(self) -> None:
            bars.append(self)

        def update(self, n: int, /) -> None: ...

        def close(self) -> None:
            self.closed = True

    def make(name: str, total: int | None) -> Bar:
        return ABar()

    pool: Pool = pparallel.build(kind(size=1, progress=make))
    join, calls = pool.join, list[str]()

    def interrupted() -> None:
        calls.append("join")
        if len(calls) == 1:
            raise what
        join()

    monkeypatch.setattr(pool, "join", interrupted)
    with pytest.raises(what), pool:  # noqa: PT012
        stream = pool.imap(double, range(10**9))
        assert next(stream) == 0
        until(lambda: bool(bars), "no bar was shown")
    assert len(calls) == 2
    assert [each.closed for each in bars] == [True]
    with pytest.raises(ClosedError, match="was terminated"):
        pool.map(double, [1])
    del stream


OPEN_AT_THE_END = """
import time

import pparallel
from pparallel_local import ThreadPoolConfig


class Slow:
    def __del__(self):
        time.sleep(0.3)  # other threads run meanwhile, as they do where a tensor is freed
        print("freed")


pool = pparallel.build(ThreadPoolConfig(size=2))
pool.open()
pool.submit(id, Slow()).result()
"""


def test_a_pool_that_is_open_when_the_program_ends() -> None:
    """A worker that frees a tensor as the interpreter ends is ended in torch, which aborts."""
    command = [sys.executable, "-W", "error", "-c", OPEN_AT_THE_END]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "freed\n", "")
