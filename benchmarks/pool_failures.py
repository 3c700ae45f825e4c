"""From the death of a worker to the error at the caller, and from there to the next result.

Also from the death of the program to that of its workers. ``multiprocessing.Pool`` is not among the
peers: there the caller waits for ever.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.harness import Aim, Contest, Making, Samples, Setting, Turn
from benchmarks.harness.processes import descendants
from benchmarks.ours import WORKERS, our_pool
from benchmarks.peers import executor
from benchmarks.tasks import no_op, wait_to_be_killed
from pparallel.errors import WorkerLostError
from pparallel.testing.deaths import DEATHS, Death

BOUND = 1.0  #: seconds within which the caller has to have the error
BOUND_OF_WORKERS = 2.0  #: seconds within which workers are gone once their program is
METHODS = ("forkserver", "spawn")
PROGRAM = """
import sys
from benchmarks.ours import our_pool
from benchmarks.tasks import wait_to_be_killed

backend, method, *paths = sys.argv[1:]
with our_pool(backend, start_method=method) as pool:
    pool.map(wait_to_be_killed, paths, chunksize=1)
"""

Submit = Callable[..., "Future[object]"]
Opened = Callable[[], AbstractContextManager[Submit]]


# -- a worker ----------------------------------------------------------------------------------


@contextmanager
def killed(setting: Setting) -> Iterator[Contest]:
    """A worker gets SIGKILL while it runs a task."""
    yield Contest(
        contenders={
            "ours": partial(_killed, partial(_ours, setting.backend), again=True),
            "ProcessPoolExecutor": partial(_killed, lambda: _submitting(executor()), again=False),
            "the bound": _bound,
        },
        aims=[Aim("the bound", 1)],
        rounds=9,
    )


@contextmanager
def dies(method: str, setting: Setting) -> Iterator[Contest]:
    """A task ends its worker, in each way that there is; the time is from when it is submitted."""
    opened = partial(_ours, setting.backend, start_method=method)
    deaths = {f"ours, {name}": partial(_dies, opened, death) for name, death in DEATHS.items()}
    yield Contest(
        contenders={**deaths, "the bound": _bound},
        aims=[Aim("the bound", 1, ours=each) for each in deaths],
        rounds=5,
        warm_up=False,
    )


def _bound(_number: int) -> Samples:
    return {"wall": BOUND, "next result": BOUND}


def _killed(opened: Opened, number: int, *, again: bool) -> Samples:
    """Kill a worker of a new pool; *again*: the pool is of use after a loss."""
    with tempfile.TemporaryDirectory() as folder, opened() as submit:
        submit(no_op, number).result()
        told = Path(folder, "pid")
        future = submit(wait_to_be_killed, str(told))
        _wait_for([told])
        began = perf_counter()
        os.kill(int(told.read_text()), signal.SIGKILL)
        error = future.exception()
        wall = perf_counter() - began
        if error is None:
            raise ValueError("a task whose worker was killed has a result")
        return {"wall": wall, **(_next(submit, number) if again else {})}


def _dies(opened: Opened, death: Death, number: int) -> Samples:
    """Have a task of a new pool end its worker."""
    with opened() as submit:
        submit(no_op, number).result()
        began = perf_counter()
        error = submit(death.call, *death.args).exception()
        wall = perf_counter() - began
        if not isinstance(error, WorkerLostError) or error.exitcode != death.exitcode:
            raise ValueError(f"a task that ends its worker with {death.exitcode} fails by {error}")
        return {"wall": wall, **_next(submit, number)}


def _next(submit: Submit, number: int) -> Samples:
    """Return how long the next task takes, which may need the new worker."""
    began = perf_counter()
    if submit(no_op, number).result() != number:
        raise ValueError("the task after a loss has a wrong result")
    return {"next result": perf_counter() - began}


@contextmanager
def _ours(backend: str, **options: object) -> Iterator[Submit]:
    with our_pool(backend, **options) as pool:
        yield pool.submit


@contextmanager
def _submitting(executor: Executor) -> Iterator[Submit]:
    with executor:
        yield executor.submit


# -- the program -------------------------------------------------------------------------------


@contextmanager
def program_killed(setting: Setting) -> Iterator[Contest]:
    """The program gets SIGKILL while its workers run tasks; all that it started has to end."""
    turns: dict[str, Turn] = {
        f"ours, {method}": partial(_orphaned, setting.backend, method) for method in METHODS
    }
    yield Contest(
        contenders={**turns, "the bound": lambda _: {"wall": BOUND_OF_WORKERS}},
        aims=[Aim("the bound", 1, ours=each) for each in turns],
        rounds=5,
        warm_up=False,
    )


def _orphaned(backend: str, method: str, _number: int) -> Samples:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        told = [Path(folder, str(worker)) for worker in range(WORKERS)]
        command = [sys.executable, "-c", PROGRAM, backend, method, *map(str, told)]
        program = stack.enter_context(subprocess.Popen(command))
        stack.callback(program.kill)
        _wait_for(told, lambda: program.poll() is None)
        ends = [os.pidfd_open(pid) for pid in descendants(program.pid)]
        for each in ends:
            stack.callback(os.close, each)
        began = perf_counter()
        program.kill()
        _wait_for_ends(ends)
        return {"wall": perf_counter() - began}


def _wait_for(paths: Sequence[Path], goes_on: Callable[[], bool] = lambda: True) -> None:
    while not all(each.exists() for each in paths):
        if not goes_on():
            raise ValueError("the program ended before its workers were at work")
        time.sleep(0.001)


def _wait_for_ends(pidfds: list[int]) -> None:
    """Wait until processes have ended, whoever has to be told of it."""
    for each in pidfds:
        if not select.select([each], [], [], 10 * BOUND_OF_WORKERS)[0]:
            raise ValueError("a worker goes on without its program")


CONTESTS: dict[str, Making] = {
    "a worker is killed": killed,
    **{f"a worker dies, {method}": partial(dies, method) for method in METHODS},
    "the program is killed": program_killed,
}
