"""``pparallel.compat.gluonnlp``: what its document says; the rest is in test_patterns_parallel."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import pytest
from typing_extensions import override

import pparallel
from pparallel.compat.gluonnlp import Parallel, Parallelizable
from pparallel.errors import ClosedError
from pparallel.runtime import stopping
from pparallel.runtime.stopping import StopSignal
from pparallel.testing.leftovers import no_leftovers
from pparallel.testing.patience import PATIENCE, until


class Doubling(Parallelizable):
    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    @override
    def forward_backward(self, x: Any) -> Any:
        self.threads.append(threading.current_thread())
        return 10 // x * 2


def in_thread(function: Any, into: list[Any]) -> threading.Thread:
    def run() -> None:
        try:
            into.append(function())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            into.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_they_are_those_of_pparallel() -> None:
    assert Parallelizable is pparallel.Parallelizable
    assert issubclass(Parallel, pparallel.Parallel)
    with pytest.raises(NotImplementedError):
        Parallelizable().forward_backward(1)


@pytest.mark.parametrize(("workers", "serial_init", "here"), [(0, True, 4), (2, True, 2)])
def test_the_first_inputs_run_in_the_caller(workers: int, serial_init: bool, here: int) -> None:
    net = Doubling()
    parallel = Parallel(num_workers=workers, parallizable=net, serial_init=serial_init)
    for x in (1, 2, 5, 10):
        parallel.put(x)
    assert sorted(parallel.get() for _ in range(4)) == [2, 4, 10, 20]
    assert net.threads.count(threading.current_thread()) == here


def test_workers_end_when_it_is_collected() -> None:
    with no_leftovers():
        parallel = Parallel(2, Doubling(), serial_init=False)
        parallel.put(5)
        assert parallel.get() == 4
        del parallel
        gc.collect()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_exception_comes_out_of_get(workers: int) -> None:
    """The original's worker ends with the exception, and get waits for ever."""
    parallel = Parallel(workers, Doubling(), serial_init=False)
    for x in (0, 0, 0, 5):  # more than there are workers to lose
        parallel.put(x)
    outcomes = []
    for _ in range(4):
        try:
            outcomes.append(parallel.get())
        except ZeroDivisionError as error:
            outcomes.append(type(error))
    assert sorted(outcomes, key=str) == [4, *[ZeroDivisionError] * 3]


STILL_OPEN = """
from pparallel.compat.gluonnlp import Parallel, Parallelizable

class Endless(Parallelizable):
    def forward_backward(self, x):
        started.set()
        threading.Event().wait()

import threading
started = threading.Event()
parallel = Parallel(2, Endless(), serial_init=False)
parallel.put(1)
started.wait()
"""


def test_a_program_ends_though_its_workers_run() -> None:
    """The threads of the original keep it from ending."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STILL_OPEN],
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_get_waits_for_a_put() -> None:
    parallel, got = Parallel(1, Doubling(), serial_init=False), list[Any]()
    threads = [in_thread(parallel.get, got) for _ in range(2)]
    parallel.put(5)
    until(lambda: len(got) == 1, "the first result was not got")
    parallel.put(1)
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(got) == [4, 20]


def test_who_waits_for_a_put_is_told_of_the_end() -> None:
    parallel, got = Parallel(1, Doubling()), list[Any]()
    thread = in_thread(parallel.get, got)
    until(lambda: bool(parallel._lock._waiters), "nobody waits")  # type: ignore[attr-defined]
    parallel.close()
    thread.join(PATIENCE)
    assert isinstance(got[0], RuntimeError)
    assert "nothing to get" in str(got[0])


def test_a_rank_that_is_told_to_stop_wakes() -> None:
    parallel, got, signal = Parallel(1, Doubling()), list[Any](), StopSignal()

    def wait() -> Any:
        with stopping.running_under(signal):
            return parallel.get()

    thread = in_thread(wait, got)
    until(lambda: bool(parallel._lock._waiters), "nobody waits")  # type: ignore[attr-defined]
    signal.set(RuntimeError("elsewhere"))
    thread.join(PATIENCE)
    assert isinstance(got[0], ClosedError)
