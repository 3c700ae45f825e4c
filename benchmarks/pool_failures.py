"""From the death of a worker to the error at the caller, and from there to the next result.

``multiprocessing.Pool`` is not among the peers: there the caller waits for ever.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter

from benchmarks.harness import Aim, Contest, Making, Samples, Setting, Turn
from benchmarks.ours import WORKERS, our_pool
from benchmarks.peers import fork_server
from benchmarks.tasks import no_op, wait_to_be_killed

BOUND = 1.0  #: seconds within which the caller has to have the error
Submit = Callable[..., "Future[object]"]


@contextmanager
def killed(setting: Setting) -> Iterator[Contest]:
    """A worker gets SIGKILL while it runs a task."""
    context = fork_server()

    @contextmanager
    def ours() -> Iterator[Submit]:
        with our_pool(setting.backend) as pool:
            yield pool.submit

    def executor() -> AbstractContextManager[Executor]:
        return ProcessPoolExecutor(WORKERS, mp_context=context)

    yield Contest(
        contenders={
            "ours": _turn(ours, again=True),
            "ProcessPoolExecutor": _turn(lambda: _submitting(executor()), again=False),
            "the bound": lambda _: {"wall": BOUND, "next result": BOUND},
        },
        aims=[Aim("the bound", 1)],
        rounds=9,
    )


def _turn(opened: Callable[[], AbstractContextManager[Submit]], *, again: bool) -> Turn:
    """Return a turn in a pool of its own; *again*: the pool is of use after a loss."""

    def turn(number: int) -> Samples:
        with tempfile.TemporaryDirectory() as folder, opened() as submit:
            submit(no_op, number).result()
            told = Path(folder, "pid")
            future = submit(wait_to_be_killed, str(told))
            while not told.exists():
                time.sleep(0.001)
            began = perf_counter()
            os.kill(int(told.read_text()), signal.SIGKILL)
            error = future.exception()
            wall = perf_counter() - began
            if error is None:
                raise ValueError("a task whose worker was killed has a result")
            return {"wall": wall, **(_next(submit, number) if again else {})}

    return turn


def _next(submit: Submit, number: int) -> Samples:
    """Return how long the next task takes, which may need the new worker."""
    began = perf_counter()
    if submit(no_op, number).result() != number:
        raise ValueError("the task after a loss has a wrong result")
    return {"next result": perf_counter() - began}


@contextmanager
def _submitting(executor: AbstractContextManager[Executor]) -> Iterator[Submit]:
    with executor as opened:
        yield opened.submit


CONTESTS: dict[str, Making] = {"a worker is killed": killed}
