"""What workers run in the tests of the compat pools, and pools that override a part of theirs."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from typing_extensions import override

from pparallel.compat.machin import pool as pools
from pparallel.compat.machin.pickle import dumps, loads
from pparallel.compat.machin.pool import BasePool, CtxPoolStorage, Pool, ThreadPool
from pparallel.compat.machin.queue import SimpleQueue
from pparallel.testing.pool.tasks import note

KINDS: dict[str, Callable[..., BasePool]] = {
    "BasePool": BasePool,
    "Pool": pools.Pool,
    "P2PPool": pools.P2PPool,
    "ThreadPool": pools.ThreadPool,
    "CtxPool": pools.CtxPool,
    "CtxThreadPool": pools.CtxThreadPool,
}


def square(number: int) -> int:
    return number * number


def invert(number: int) -> float:
    return 1 / number


def power(base: int, exponent: int = 1) -> int:
    return int(base**exponent)


def with_context(context: Any, *args: Any) -> tuple[Any, ...]:
    return (context, CtxPoolStorage.storage, *args)


def own_context(context: Any, number: int) -> tuple[Any, int, str]:
    return context, number, f"{os.getpid()}-{threading.get_ident()}"


def count_in_context(context: dict[str, int]) -> int:
    context["count"] += 1
    return context["count"]


def replace_context(context: Any, value: Any) -> Any:
    CtxPoolStorage.storage = value
    return context


def store_next(value: int) -> None:
    """Be an initializer that finds the worker's context, and replaces it."""
    CtxPoolStorage.storage = (CtxPoolStorage.storage, value)


def worker() -> tuple[int, int]:
    return os.getpid(), threading.get_native_id()


class Greeting:
    """What an initializer leaves, in each process or thread."""

    found = threading.local()


def greet(text: str) -> None:
    Greeting.found.text = text
    Greeting.__doc__ = text


def greeting() -> str:
    text: str = Greeting.found.text
    return text


def refuse(why: str) -> None:
    raise LookupError(why)


def fill(tensor: Any, value: float) -> None:
    tensor.fill_(value)


def answer(payload: bytes, _: object) -> None:
    """Use functions and tensors of another process, and send it such."""
    data, file = pickle.loads(payload)
    answers = []
    for each in data:
        function, tensor = loads(each)
        assert function(3) == (3, 7.0)
        tensor.fill_(5)
        answers.append(dumps((lambda tensor=tensor: float(tensor.sum()), tensor)))
    file.write_bytes(pickle.dumps(answers))


def sum_of(tensor: Any) -> float:
    return float(tensor.sum())


def sharing_strategy() -> str:
    import torch.multiprocessing

    return str(torch.multiprocessing.get_sharing_strategy())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Recording:
    """Notes in ``self.calls`` which of its parts were called; put before a pool's class."""

    calls: set[str]

    def __new__(cls, *_: Any, **__: Any) -> Any:
        made = super().__new__(cls)
        made.calls = set()
        return made


def overriding(kind: type[BasePool], point: str) -> type[BasePool]:
    """Return a subclass of *kind* that overrides one part, and calls that of *kind* in it."""

    def method(self: Any, *args: Any) -> Any:
        self.calls.add(point)
        return getattr(kind, point)(self, *args)

    return type(f"{kind.__name__}With_{point}", (Recording, kind), {point: method})


def bragging(
    get: Any, put: Any, initializer: Any = None, initargs: Any = (), maxtasks: Any = None
) -> None:
    """Be a worker function in the style of the seed's: it answers each task by itself."""
    if initializer is not None:
        initializer(*initargs)
    while (task := get()) is not None:
        job, chunk, func, args, kwds = task
        put((job, chunk, (True, ("done by me", func(*args, **kwds)))))


class BraggingPool(BasePool):
    worker = staticmethod(bragging)


class BraggingProcesses(Pool):
    worker = staticmethod(bragging)


class BraggingThreads(ThreadPool):
    worker = staticmethod(bragging)


class OwnQueues(BasePool):
    """A pool with queues of the standard library, and threads that a program starts itself."""

    @override
    def setup_queues(self) -> tuple[Any, Any]:
        import queue

        return queue.SimpleQueue(), queue.SimpleQueue()

    @override
    def pool_inqueue_put(self, obj: Any) -> None:
        self._inqueue.put(obj)

    @override
    def pool_outqueue_get(self, timeout: float) -> Any:
        import queue

        try:
            return self._outqueue.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None

    @override
    def repopulate_pool(self) -> None:
        for _ in range(self._processes - len(self._pool)):
            settings = self._initializer, self._initargs, self._maxtasksperchild
            ends = self._inqueue.get, self._outqueue.put
            thread = threading.Thread(target=self.worker, args=(*ends, *settings), daemon=True)
            self._pool.append(thread)
            thread.start()

    @override
    def terminate_workers(self) -> None:
        for _ in self._pool:
            self._inqueue.put(None)


class OwnProcesses(BasePool):
    """A pool whose processes a program starts itself, with :mod:`multiprocessing`."""

    @override
    def setup_queues(self) -> tuple[Any, Any]:
        return SimpleQueue(), SimpleQueue()

    @override
    def repopulate_pool(self) -> None:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        for _ in range(self._processes - len(self._pool)):
            settings = self._initializer, self._initargs, self._maxtasksperchild
            ends = self._inqueue.get, self._outqueue.put
            process = context.Process(target=self.worker, args=(*ends, *settings), daemon=True)
            self._pool.append(process)
            process.start()


def numbers_until(count: int) -> Iterator[int]:
    yield from range(count)
    raise LookupError("no more numbers")


def noted(path: Path, numbers: Iterable[int]) -> int:
    """Note that it ran, and add the numbers up."""
    note(path, os.getpid())
    return sum(numbers)
