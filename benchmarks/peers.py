"""The peers' pools, each set up as its documentation has it best.

Their processes come from a fork server that has loaded what the tasks need, as ours do: the start
method says nothing about how quick a pool is once it runs.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.pool import Pool

from benchmarks.ours import WORKERS
from benchmarks.tasks import no_op, share_by


def fork_server(*preload: str) -> ForkServerContext:
    """Return the context whose server has loaded the tasks, and what else is named."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.tasks", *preload])
    return context


@contextmanager
def stock_pool(*preload: str) -> Iterator[Pool]:
    """Give ``multiprocessing.Pool``."""
    pool = fork_server(*preload).Pool(WORKERS)
    try:
        pool.map(no_op, range(WORKERS), chunksize=1)
        yield pool
    finally:
        pool.close()
        pool.join()


@contextmanager
def torch_pool(strategy: str) -> Iterator[Pool]:
    """Give ``torch.multiprocessing.Pool``, its workers sharing memory by *strategy*.

    Before each use the strategy of this process has to be set too.
    """
    fork_server("torch")
    torch_multiprocessing = importlib.import_module("torch.multiprocessing")
    context = torch_multiprocessing.get_context("forkserver")
    pool: Pool = context.Pool(WORKERS, initializer=share_by, initargs=(strategy,))
    try:
        pool.map(no_op, range(WORKERS), chunksize=1)
        yield pool
    finally:
        pool.close()
        pool.join()


@contextmanager
def stock_executor() -> Iterator[Executor]:
    """Give ``concurrent.futures.ProcessPoolExecutor``."""
    with ProcessPoolExecutor(WORKERS, mp_context=fork_server()) as executor:
        list(executor.map(no_op, range(WORKERS)))
        yield executor


@contextmanager
def loky_executor() -> Iterator[Executor]:
    """Give loky's executor: its workers stay, for their time-out is not part of any measure."""
    loky = importlib.import_module("loky")
    with loky.ProcessPoolExecutor(WORKERS, timeout=None) as executor:
        list(executor.map(no_op, range(WORKERS)))
        yield executor
