"""``BasePool``: the calls of every pool here, and an engine whose parts may be overridden."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Self, cast

from typing_extensions import override

from pparallel.compat.machin.pickle import serializer
from pparallel.compat.machin.pool.engine import Engine
from pparallel.compat.machin.pool.messages import opened, seal_task
from pparallel.compat.machin.pool.results import (
    AsyncResult,
    Cache,
    Callback,
    IMapIterator,
    IMapUnorderedIterator,
    MapResult,
    listed,
)
from pparallel.compat.machin.pool.road import Func, Road
from pparallel.compat.machin.pool.states import PoolStates
from pparallel.compat.machin.pool.workers import (
    Duty,
    Worker,
    WorkerProcess,
    close_all,
    join_all,
    terminate_all,
)
from pparallel.compat.machin.pool.working import check_maxtasks, run_tasks
from pparallel.compat.machin.queue import SimpleQueue
from pparallel.interfaces.pool.arguments import check_callable, check_chunksize
from pparallel.machine.cpus import usable_cpus
from pparallel.runtime.processes import StartMethod

_FAREWELL = 5.0  #: seconds that workers of a closed pool have to end
_FORCE = 1.0  #: seconds that those of a terminated one have


class BasePool:
    """A pool of workers, processes as a rule, and the base of all others.

    It runs on an engine of its own, whose parts a subclass may override: ``setup_queues``,
    ``repopulate_pool``, ``join_workers``, ``terminate_workers``, ``maintain_pool``,
    ``pool_inqueue_put``, ``pool_outqueue_get`` and ``worker``. The engine calls them in threads of
    its own, but for the first ``setup_queues`` and ``repopulate_pool``.

    What travels is ``(job, chunk, func, args, kwds)`` to a worker, ``None`` when it is to end, and
    ``(job, chunk, (succeeded, value))`` back. A worker that a subclass adds to ``self._pool`` has
    the methods of a process or thread of the standard library.

    - A task whose worker dies fails with ``WorkerLostError`` within a second, and the worker is
      replaced. This needs ``pool_inqueue_put`` to end in this class's, with any queue that pickles.
    - What cannot be serialised or rebuilt (function, argument, result, exception) is an error to
      the caller.
    - An iterable that raises, raises at the call.
    - Workers never run ``__main__`` again, and end when the pool does, or is collected.

    Leaving ``with`` terminates the pool.

    Args:
        processes: how many workers; ``None``: as many as there are cores for this process.
        initializer: called in each worker as it starts. One that raises fails the pool's tasks
            with that, once three workers in a row could not start.
        initargs: its arguments.
        maxtasksperchild: a worker is replaced after so many tasks.
        context: of :mod:`multiprocessing`: how workers start. ``None``: by a fork server of
            pparallel's own.

    Raises:
        ValueError: a number is less than 1.
        TypeError: the initializer cannot be called.

    Source: machin.parallel.pool, which follows multiprocessing.pool of CPython 3.7.
    """

    _inqueue: Any
    _outqueue: Any
    _road: Road

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        self._processes = usable_cpus() if processes is None else processes
        if self._processes < 1:
            message = f"processes must be 1 or more, or None, not {processes}"
            raise ValueError(message)
        if initializer is not None:
            check_callable(initializer)
        check_maxtasks(maxtasksperchild)
        self._initializer, self._initargs = initializer, tuple(initargs)
        self._maxtasksperchild = maxtasksperchild
        self._ctx = context
        self._state = PoolStates.RUN
        self._cache: Cache = {}
        self._pool: list[Any] = []
        self._open()

    def _open(self) -> None:
        self._road = engine = Engine(self)
        engine.open(self)

    # -- calls --------------------------------------------------------------------------------

    def apply(
        self, func: Func, args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None
    ) -> Any:
        """Return ``func(*args, **kwds)``, run by a worker."""
        return self._road.call_and_wait(self._prepared(func), tuple(args), kwds or {})

    def apply_async(
        self,
        func: Func,
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
    ) -> AsyncResult:
        """Have ``func(*args, **kwds)`` run by a worker, and return its result to come.

        Args:
            func: the function.
            args: its arguments.
            kwds: its keyword arguments.
            callback: called with the value before it can be had; it should return at once.
            error_callback: the same for the exception.
        """
        arguments = self._prepared(func), tuple(args), kwds or {}
        return self._road.call(*arguments, callback, error_callback).keep(self)

    def map(self, func: Func, iterable: Iterable[Any], chunksize: int | None = None) -> list[Any]:
        """Return ``[func(item) for item in iterable]``, run by the workers.

        Args:
            func: the function.
            iterable: the items; what it raises is raised here.
            chunksize: how many items a worker is handed at once.
        """
        items = listed(iterable)
        return self._road.map_and_wait(self._prepared(func), items, "one", _checked(chunksize))

    def map_async(
        self,
        func: Func,
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
    ) -> MapResult:
        """Like :meth:`map`, but return the result to come; see :meth:`apply_async`."""
        items = listed(iterable)
        arguments = self._prepared(func), items, "one", _checked(chunksize)
        return self._road.map(*arguments, callback, error_callback).keep(self)  # type: ignore[arg-type]

    def starmap(
        self, func: Func, iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[Any]:
        """Return ``[func(*item) for item in iterable]``, run by the workers."""
        items = listed(iterable)
        return self._road.map_and_wait(self._prepared(func), items, "star", _checked(chunksize))

    def starmap_async(
        self,
        func: Func,
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
    ) -> MapResult:
        """Like :meth:`starmap`, but return the result to come; see :meth:`apply_async`."""
        items = listed(iterable)
        arguments = self._prepared(func), items, "star", _checked(chunksize)
        return self._road.map(*arguments, callback, error_callback).keep(self)  # type: ignore[arg-type]

    def imap(
        self, func: Func, iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator | list[Any]:
        """Return the results in the order of the items: each as it is there.

        With a *chunksize* other than 1 this waits for all, and returns them in a list. The iterable
        is read to its end at once.
        """
        return self._imap(func, iterable, chunksize, IMapIterator)

    def imap_unordered(
        self, func: Func, iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapUnorderedIterator | list[Any]:
        """Return the results in the order in which they come; otherwise as :meth:`imap`."""
        found = self._imap(func, iterable, chunksize, IMapUnorderedIterator)
        return cast("IMapUnorderedIterator | list[Any]", found)

    def _imap(
        self, func: Func, iterable: Iterable[Any], chunksize: int, kind: type[IMapIterator]
    ) -> IMapIterator | list[Any]:
        if chunksize != 1:
            return self.map(func, iterable, chunksize)
        return self._road.imap(self._prepared(func), listed(iterable), kind).keep(self)

    def _prepared(self, func: Func) -> Func:
        """Return what is run for *func*."""
        check_callable(func)
        return func

    # -- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more calls; once those taken are done, the workers end."""
        if self._state is PoolStates.RUN:
            self._state = PoolStates.CLOSE
        self._road.close()

    def terminate(self) -> None:
        """Fail what is not done with ``ClosedError``, and end the workers."""
        self._state = PoolStates.TERMINATE
        self._road.terminate()

    def join(self) -> None:
        """Wait until all is done and the workers have ended.

        Raises:
            ValueError: the pool takes calls still.
        """
        if self._state is PoolStates.RUN:
            message = f"{self!r} takes calls still: close or terminate it before join"
            raise ValueError(message)
        self._road.join()

    def size(self) -> int:
        """Return the number of workers."""
        return self._road.size()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()
        self.join()

    @override
    def __reduce__(self) -> NoReturn:
        message = "Pool objects cannot be passed between processes or pickled"
        raise NotImplementedError(message)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}(processes={self._processes})"

    # -- what a subclass may override ---------------------------------------------------------

    def setup_queues(self) -> tuple[Any, Any]:
        """Return a queue for tasks and one for answers; they are closed with the pool."""
        return SimpleQueue(ctx=self._ctx, copy_tensor=True), SimpleQueue(
            ctx=self._ctx, copy_tensor=True
        )

    def repopulate_pool(self) -> None:
        """Start as many workers as are missing in ``self._pool``."""
        taken = {getattr(each, "index", None) for each in self._pool}
        free = [each for each in range(self._processes) if each not in taken]
        for index in free[: self._processes - len(self._pool)]:
            self._pool.append(self._start(index))

    def maintain_pool(self) -> None:
        """Replace the workers that have ended; called ten times a second."""
        ended = [each for each in self._pool if not each.is_alive()]
        close_all(ended)
        self._pool[:] = [each for each in self._pool if each not in ended]
        self.repopulate_pool()

    def terminate_workers(self) -> None:
        """Tell all workers to end at once."""
        terminate_all(self._pool)

    def join_workers(self) -> None:
        """Wait until all workers have ended; those that take too long are ended by force."""
        join_all(self._pool, _FORCE if self._state is PoolStates.TERMINATE else _FAREWELL)

    def pool_inqueue_put(self, obj: Any) -> None:
        """Put a task, or ``None`` that ends a worker, into the queue of tasks.

        Raises:
            SerializationError: the task cannot be serialised: it fails with that.
        """
        put = getattr(self._inqueue, "quick_put", None) or self._inqueue.put
        put(obj if obj is None else seal_task(obj, self._serializer(), self._engine.handle))

    def pool_outqueue_get(self, timeout: float) -> Any:
        """Return the next answer.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: there was none for so long.
            OSError: the queue cannot be used any more; ``EOFError`` says the same. The pool ends.
        """
        return opened(self._outqueue.quick_get(timeout=timeout))

    @staticmethod
    def worker(
        get: Callable[[], Any],
        put: Callable[[Any], object],
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasks: int | None = None,
    ) -> None:
        """Run tasks until there is ``None`` instead of one: what a worker does.

        Args:
            get: returns the next task.
            put: takes an answer.
            initializer: called first.
            initargs: its arguments.
            maxtasks: how many tasks to run at most.

        Raises:
            ValueError: *maxtasks* is less than 1.
        """
        run_tasks(get, put, initializer, initargs, maxtasks)

    # -- what the pools below change ----------------------------------------------------------

    @property
    def _engine(self) -> Engine:
        return cast("Engine", self._road)

    def _serializer(self) -> Any:
        """Return what turns tasks into bytes."""
        return serializer()

    def _ends(self, index: int) -> tuple[Callable[[], Any], Callable[[Any], object]]:
        """Return what worker *index* takes tasks from, and what it puts answers into."""
        return self._inqueue.get, self._outqueue.put

    def _settings(self, index: int) -> tuple[Any, ...]:
        """Return initializer, initargs and maxtasks of worker *index*."""
        return self._initializer, self._initargs, self._maxtasksperchild

    def _duty(self, index: int) -> Duty:
        work, handle = self.worker, self._engine.handle
        return Duty(index, work, *self._ends(index), self._settings(index), handle)

    def _start(self, index: int) -> Worker:
        method: StartMethod = "forkserver" if self._ctx is None else self._ctx.get_start_method()
        return WorkerProcess.start(self._duty(index), method)


def _checked(chunksize: int | None) -> int | None:
    check_chunksize(chunksize)
    return chunksize
