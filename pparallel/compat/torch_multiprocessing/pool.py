"""``multiprocessing.Pool`` on a process pool of pparallel's."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn, Self

from typing_extensions import override

from pparallel.builder import build, load
from pparallel.compat.torch_multiprocessing.chunks import Chunk, chunks, chunksize_for, flat
from pparallel.compat.torch_multiprocessing.encoding import translated
from pparallel.compat.torch_multiprocessing.ownership import SERIALIZER
from pparallel.compat.torch_multiprocessing.results import AsyncResult, IMapIterator
from pparallel.errors import ClosedError, SerializationError
from pparallel.interfaces.pool import Pool as Engine
from pparallel.interfaces.pool import PoolConfig
from pparallel.runtime.collected import when_collected

Callback = Callable[[Any], object]

_RUNNING, _CLOSED, _ENDED = "running", "closed", "ended"

#: modules whose objects are shared by inheritance
_INHERITED = frozenset({"multiprocessing.queues", "multiprocessing.sharedctypes"})
_INHERITED |= {"multiprocessing.synchronize"}

_OPTIONS = {"backend": "process", "serializer": SERIALIZER}


class Pool:
    """Processes that run functions. Any thread may call any method.

    A task whose worker dies fails with ``WorkerLostError``, and the worker is replaced. Tensors in
    shared memory stay shared; what else arrives is the receiver's own.

    Args:
        processes: how many; ``None``: as many as there are CPUs that this process may use.
        initializer: called in each worker as it starts. One that raises fails all tasks.
        initargs: its arguments. Objects of :mod:`multiprocessing` may be among them.
        maxtasksperchild: a worker is replaced after so many tasks, of which a chunk is one.
        context: of :mod:`multiprocessing`; says how workers start. Without it they are forked from
            a small server; from this process, if the default start method is ``fork`` and they
            are to have what nothing else can give them.

    Raises:
        TypeError: the initializer cannot be called, or there is no such context.
        ValueError: a number is less than 1.
        MaybeEncodingError: the initializer or an argument cannot be sent.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        _check_number("processes", processes)
        _check_number("maxtasksperchild", maxtasksperchild)
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be a function, not {initializer!r}")
        self._chunked = maxtasksperchild is not None
        self._engine = _opened(
            context,
            size=processes,
            initializer=initializer,
            initargs=tuple(initargs),
            max_tasks=maxtasksperchild,
        )
        self._state = _RUNNING
        self._joined_when_dropped: Callable[[], object] | None = None

    def apply(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return ``func(*args, **kwds)``, run by a worker."""
        try:
            return self._engine.apply(func, args, kwds)
        except SerializationError as error:
            raise translated(error) from error

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> AsyncResult:
        """Have ``func(*args, **kwds)`` run by a worker, and return its result to come.

        The callbacks are called in a thread of this process, with the value or the exception,
        before the result is ready. What they raise is logged.
        """
        told = _told(error_callback)
        return AsyncResult(self, self._engine.apply_async(func, args, kwds, callback, told))

    def map(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Any]:
        """Return ``[func(item) for item in iterable]``, run by the workers."""
        return self._mapped(func, iterable, chunksize, star=False)

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> AsyncResult:
        """Like :meth:`map`, but return the result to come; callbacks as in :meth:`apply_async`."""
        return self._to_come(func, iterable, chunksize, callback, error_callback, star=False)

    def starmap(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[Any]:
        """Return ``[func(*item) for item in iterable]``, run by the workers."""
        return self._mapped(func, iterable, chunksize, star=True)

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> AsyncResult:
        """Like :meth:`starmap`, but return the result to come; see :meth:`map_async`."""
        return self._to_come(func, iterable, chunksize, callback, error_callback, star=True)

    def imap(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator:
        """Return an iterator over the results in the order of the items."""
        return self._streamed(self._engine.imap, func, iterable, chunksize)

    def imap_unordered(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator:
        """Return an iterator over the results in the order in which tasks end."""
        return self._streamed(self._engine.imap_unordered, func, iterable, chunksize)

    def close(self) -> None:
        """Take no more calls; those that were taken are finished, joined or not."""
        self._engine.close()
        if self._state == _RUNNING:
            self._state = _CLOSED
            self._joined_when_dropped = when_collected(self, partial(_join_aside, self._engine))

    def terminate(self) -> None:
        """End the workers at once; what is not done fails with ``ClosedError``."""
        self._engine.terminate()
        self.join()

    def join(self) -> None:
        """Wait until all tasks have ended, and release the workers.

        Raises:
            ValueError: the pool takes calls still.
        """
        self._engine.join()
        self._state = _ENDED
        if self._joined_when_dropped is not None:
            self._joined_when_dropped()

    def __enter__(self) -> Self:
        if self._state != _RUNNING:
            raise ClosedError(repr(self), f"is {self._state}")
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._engine.size()} processes, {self._state}>"

    @override
    def __reduce__(self) -> NoReturn:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def _mapped(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None,
        *,
        star: bool,
    ) -> list[Any]:
        if self._chunked:
            return self._to_come(func, iterable, chunksize, star=star).get()  # type: ignore[no-any-return]
        call = self._engine.starmap if star else self._engine.map
        try:
            return call(func, iterable, chunksize)
        except SerializationError as error:
            raise translated(error) from error

    def _to_come(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
        *,
        star: bool,
    ) -> AsyncResult:
        told = _told(error_callback)
        if not self._chunked:
            call = self._engine.starmap_async if star else self._engine.map_async
            return AsyncResult(self, call(func, iterable, chunksize, callback, told))
        _check_number("chunksize", chunksize)
        items = list(iterable)
        pieces = chunks(items, chunksize or chunksize_for(items, self._engine.size()))
        whole = None if callback is None else lambda results: callback(flat(results))
        handle = self._engine.map_async(Chunk(func, star=star), pieces, 1, whole, told)
        return AsyncResult(self, handle, flat)

    def _streamed(
        self, call: Any, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int
    ) -> IMapIterator:
        if not self._chunked:
            return IMapIterator(self, call(func, iterable, chunksize))
        _check_number("chunksize", chunksize)
        return IMapIterator(self, call(Chunk(func), chunks(iterable, chunksize)), chunked=True)


def _check_number(name: str, number: int | None) -> None:
    if number is not None and (not isinstance(number, int) or number < 1):
        raise ValueError(f"{name} must be 1 or more, not {number!r}")


def _told(callback: Callback | None) -> Callback | None:
    return None if callback is None else lambda error: callback(translated(error))


def _join_aside(engine: Engine) -> None:
    threading.Thread(target=engine.join, name="pparallel-pool", daemon=True).start()


def _opened(context: Any, **options: Any) -> Engine:
    """Return a pool that is open, whose workers start as *context* says."""
    if context is not None and not hasattr(context, "get_start_method"):
        raise TypeError(f"context must be one of multiprocessing.get_context(), not {context!r}")
    default = multiprocessing.get_start_method(allow_none=True)
    asked = default if context is None else context.get_start_method()
    method = asked
    if context is None and default in (None, "fork"):
        method = "fork" if _must_inherit() else "forkserver"
    try:
        return _engine({**options, "start_method": method})
    except SerializationError as error:
        if method == asked or default is None:
            raise translated(error) from error
    return _engine({**options, "start_method": "fork"})


def _must_inherit() -> bool:
    """Return whether the script has objects at module level that only a fork can be given."""
    values = [*vars(sys.modules["__main__"]).values()]
    return any(type(each).__module__ in _INHERITED for each in values)


def _engine(options: Mapping[str, Any]) -> Engine:
    engine: Engine = build(load(PoolConfig, {**_OPTIONS, **options}))
    engine.open()
    return engine
