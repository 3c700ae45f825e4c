"""``Pool``, ``P2PPool`` and ``ThreadPool``: on native pools, unless a subclass overrides a part."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from typing_extensions import override

from pparallel.compat.machin.pickle import serializer
from pparallel.compat.machin.pool.base import BasePool
from pparallel.compat.machin.pool.native import NativeRoad
from pparallel.compat.machin.pool.workers import Worker, WorkerThread
from pparallel.compat.machin.queue import MultiP2PQueue

#: what a subclass may override, and which a native pool does not have
POINTS = (
    "setup_queues",
    "repopulate_pool",
    "join_workers",
    "terminate_workers",
    "maintain_pool",
    "pool_inqueue_put",
    "pool_outqueue_get",
    "worker",
)


class Pool(BasePool):
    """Processes that take lambdas and local functions, and tensors by copy or by reference.

    Args:
        processes: how many workers; ``None``: as many as there are cores for this process.
        initializer: called in each worker as it starts.
        initargs: its arguments.
        maxtasksperchild: a worker is replaced after so many tasks.
        is_recursive: send with a function of an importable module the globals it names. Lambdas and
            local functions are sent either way.
        is_daemon: taken for programs that say so; workers end with their parent in any case, and
            may start processes of their own in any case.
        is_copy_tensor: what arrives is the receiver's own. ``False``: tensors are passed by
            reference, and each side sees the other's writes.
        share_method: which tensors are passed by reference, if any are: ``cpu`` or ``cuda``. With
            ``cpu`` workers are forked; otherwise they are fresh interpreters.

    Raises:
        RuntimeError: tensors are to be passed by reference, and *share_method* is neither.
        ValueError: a number is less than 1.
        TypeError: the initializer cannot be called.
    """

    _backend: ClassVar[str] = "process"
    _own: ClassVar[type[Pool]]  # the nearest class that overrides nothing but what is built in

    @override
    def __init_subclass__(cls, *, built_in: bool = False, **kwds: Any) -> None:
        super().__init_subclass__(**kwds)
        if built_in:
            cls._own = cls

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        is_recursive: bool = False,
        is_daemon: bool = True,
        is_copy_tensor: bool = True,
        share_method: str | None = None,
    ) -> None:
        if not (is_copy_tensor or share_method in ("cpu", "cuda")):
            message = (
                f"Invalid share method: {share_method!r}; with is_copy_tensor=False it is"
                " 'cpu' or 'cuda'"
            )
            raise RuntimeError(message)
        self._share = "copy" if is_copy_tensor else share_method
        self._is_recursive = is_recursive
        context = multiprocessing.get_context("fork" if self._share == "cpu" else "spawn")
        super().__init__(processes, initializer, initargs, maxtasksperchild, context)

    @override
    def _open(self) -> None:
        if self._is_native():
            self._road = NativeRoad(self, self._config())
        else:
            super()._open()

    def _is_native(self) -> bool:
        """Return whether a native pool does what is asked for."""
        return all(getattr(type(self), each) is getattr(self._own, each) for each in POINTS)

    def _config(self) -> dict[str, Any]:
        """Return the config of the native pool."""
        return {
            "backend": self._backend,
            "size": self._processes,
            "initializer": self._initializer,
            "initargs": self._initargs,
            "max_tasks": self._maxtasksperchild,
            "start_method": self._ctx.get_start_method(),
            "share_tensors": self._share,
            "serializer": {"backend": "dill", "recurse": self._is_recursive},
        }

    @override
    def _serializer(self) -> Any:
        return serializer(self._is_recursive, self._share == "copy")


Pool._own = Pool


class P2PPool(Pool, built_in=True):
    """Processes to which tasks are dealt in turn, each over its own channel.

    Arguments, attributes and errors are those of :class:`Pool`.
    """

    _backend = "p2p"

    @override
    def setup_queues(self) -> tuple[Any, Any]:
        """Return queues with an end for each worker."""
        queues = (MultiP2PQueue(self._processes, copy_tensor=True) for _ in range(2))
        return next(queues), next(queues)

    @override
    def _ends(self, index: int) -> tuple[Callable[[], Any], Callable[[Any], object]]:
        tasks, answers = self._inqueue, self._outqueue
        if isinstance(tasks, MultiP2PQueue):
            return tasks.get_sub_queue(index).get, answers.get_sub_queue(index).put
        return super()._ends(index)  # a subclass has set up others


class ThreadPool(Pool, built_in=True):
    """Threads of this process; functions, arguments and results are passed as they are.

    Arguments, attributes and errors are those of :class:`Pool`. Those on recursion and tensors
    change nothing: nothing is copied. A task that runs when the pool is terminated is abandoned.
    """

    _backend = "thread"

    @override
    def _is_native(self) -> bool:
        return self._maxtasksperchild is None and super()._is_native()

    @override
    def _config(self) -> dict[str, Any]:
        every = super()._config()
        return {each: every[each] for each in ("backend", "size", "initializer", "initargs")}

    @override
    def setup_queues(self) -> tuple[Any, Any]:
        """Return queues that pass references."""
        return queue.SimpleQueue(), queue.SimpleQueue()

    @override
    def pool_inqueue_put(self, obj: Any) -> None:
        """Put a task, or ``None`` that ends a worker, as it is."""
        self._inqueue.put(obj)

    @override
    def pool_outqueue_get(self, timeout: float) -> Any:
        """Return the next answer.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: there was none for so long.
        """
        try:
            return self._outqueue.get(timeout=timeout)
        except queue.Empty:
            message = f"no answer within {timeout} s"
            raise TimeoutError(message) from None

    @override
    def terminate_workers(self) -> None:
        """Have all threads end after the task that they run: they cannot be ended by force."""
        for _ in self._pool:
            self._inqueue.put(None)

    @override
    def _start(self, index: int) -> Worker:
        worker = WorkerThread(self._duty(index))
        worker.start()
        return worker
