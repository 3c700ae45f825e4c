"""The peers' pools, each set up as its documentation has it best.

Their processes come from a fork server that has loaded what the tasks need, as ours do: the start
method says nothing about how quick a pool is once it runs.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
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
def closing(pool: Pool) -> Iterator[Pool]:
    """Give a pool, and let it end its tasks and its processes afterwards."""
    try:
        yield pool
    finally:
        pool.close()
        pool.join()


@contextmanager
def stock_pool(*preload: str) -> Iterator[Pool]:
    """Give ``multiprocessing.Pool``."""
    with closing(fork_server(*preload).Pool(WORKERS)) as pool:
        pool.map(no_op, range(WORKERS), chunksize=1)
        yield pool


@contextmanager
def torch_pool(strategy: str) -> Iterator[Pool]:
    """Give ``torch.multiprocessing.Pool``, its workers sharing memory by *strategy*.

    Before each use the strategy of this process has to be set too.
    """
    fork_server("torch")
    context = importlib.import_module("torch.multiprocessing").get_context("forkserver")
    with closing(context.Pool(WORKERS, initializer=share_by, initargs=(strategy,))) as pool:
        pool.map(no_op, range(WORKERS), chunksize=1)
        yield pool


def executor() -> ProcessPoolExecutor:
    """Return a new ``concurrent.futures.ProcessPoolExecutor``."""
    return ProcessPoolExecutor(WORKERS, mp_context=fork_server())


def stock_executor() -> AbstractContextManager[Executor]:
    """Give ``concurrent.futures.ProcessPoolExecutor``."""
    return _at_work(executor())


def loky_executor() -> AbstractContextManager[Executor]:
    """Give loky's executor: its workers stay, for their time-out is not part of any measure."""
    return _at_work(importlib.import_module("loky").ProcessPoolExecutor(WORKERS, timeout=None))


@contextmanager
def _at_work(executor: Executor) -> Iterator[Executor]:
    """Give an executor whose workers have been started; they have ended afterwards."""
    with executor:
        list(executor.map(no_op, range(WORKERS)))
        yield executor
