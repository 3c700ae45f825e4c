"""Pools whose workers have a context each: ``CtxPool`` and ``CtxThreadPool``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from typing_extensions import override

from pparallel.compat.machin.pickle import loads
from pparallel.compat.machin.pool.pools import Pool, ThreadPool
from pparallel.compat.machin.pool.road import Func


class _Cell:
    """A worker's context on its way; where it arrives, it becomes that process's."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.value,)


_everywhere = _Cell()  #: of this process, if it is a worker
_own = threading.local()  #: ``cell``: of a thread that is a worker


def _here() -> _Cell:
    found: _Cell = getattr(_own, "cell", _everywhere)
    return found


def _arrived(value: Any) -> _Cell:
    _everywhere.value = value
    return _everywhere


class _PerWorker(type):
    """Gives a class an attribute ``storage`` that each worker has for itself."""

    @property
    def storage(cls) -> Any:
        return _here().value

    @storage.setter
    def storage(cls, value: Any) -> None:
        _here().value = value


class CtxPoolStorage(metaclass=_PerWorker):
    """Where a worker finds its context: in ``CtxPoolStorage.storage``.

    It is the context of the process, or of the thread, that looks. What a worker, or its
    initializer, assigns to it is passed to the functions that the worker runs next.
    """


def proxy_ctx_caller(*input_: Any) -> Any:
    """Call a serialised function with the context of this worker.

    Args:
        input_: the function, as ``dumps`` of ``machin.pickle`` returns it, its arguments and its
            keyword arguments; or one sequence of these three.

    Returns:
        What the function returns.
    """
    func, args, kwds = input_[0] if len(input_) == 1 else input_
    return loads(func)(CtxPoolStorage.storage, *args, **kwds)


class _WithContexts(Pool):
    """What the two pools share: whose contexts there are, and who is passed which."""

    _contexts: Sequence[Any]

    @override
    def _prepared(self, func: Func) -> Func:
        call = _call_in if self._is_native() else _call
        return partial(call, super()._prepared(func))

    @override
    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "worker_contexts": tuple(map(_Cell, self._contexts))}

    @override
    def _settings(self, index: int) -> tuple[Any, ...]:
        initializer, initargs, maxtasks = super()._settings(index)
        return _begin, (_Cell(self._contexts[index]), initializer, *initargs), maxtasks


class CtxPool(_WithContexts, built_in=True):
    """Processes with a context each, which is the first argument of the functions they run.

    Args:
        processes: how many workers.
        initializer: called in each worker as it starts; ``CtxPoolStorage.storage`` is there.
        initargs: its arguments.
        maxtasksperchild: a worker is replaced, and its successor has its context, after so many
            tasks.
        worker_contexts: as many as there are workers; ``None``: the context of each is ``None``.
        is_recursive: as for :class:`Pool`.
        is_daemon: as for :class:`Pool`.
        is_copy_tensor: as for :class:`Pool`.
        share_method: as for :class:`Pool`.

    Raises:
        RuntimeError: as for :class:`Pool`.
        ValueError: there are more or fewer contexts than workers, or a number is less than 1.
        TypeError: the initializer cannot be called.
    """

    def __init__(
        self,
        processes: int,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        worker_contexts: Iterable[Any] | None = None,
        is_recursive: bool = False,
        is_daemon: bool = True,
        is_copy_tensor: bool = True,
        share_method: str | None = None,
    ) -> None:
        self._contexts = _checked(worker_contexts, processes)
        super().__init__(
            processes,
            initializer,
            initargs,
            maxtasksperchild,
            is_recursive,
            is_daemon,
            is_copy_tensor,
            share_method,
        )


class CtxThreadPool(_WithContexts, ThreadPool, built_in=True):
    """Threads with a context each, which is the first argument of the functions they run.

    Args:
        processes: how many workers.
        initializer: called in each worker as it starts; ``CtxPoolStorage.storage`` is there.
        initargs: its arguments.
        worker_contexts: as many as there are workers; ``None``: the context of each is ``None``.

    Raises:
        ValueError: there are more or fewer contexts than workers, or a number is less than 1.
        TypeError: the initializer cannot be called.
    """

    def __init__(
        self,
        processes: int,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        worker_contexts: Iterable[Any] | None = None,
    ) -> None:
        self._contexts = _checked(worker_contexts, processes)
        super().__init__(processes, initializer, initargs)

    @override
    def _is_native(self) -> bool:
        # A native thread does not know its context before its first task.
        return self._initializer is None and super()._is_native()


def _checked(contexts: Iterable[Any] | None, processes: int) -> Sequence[Any]:
    found = [None] * processes if contexts is None else list(contexts)
    if len(found) != processes:
        message = (
            f"the number of contexts, {len(found)}, is not equal to the number of pool workers,"
            f" {processes}"
        )
        raise ValueError(message)
    return found


def _begin(cell: _Cell, initializer: Callable[..., object] | None, *initargs: Any) -> None:
    """Be the initializer of a worker of the engine's."""
    if cell is not _everywhere:  # it has not travelled: this is a thread
        _own.cell = cell
    if initializer is not None:
        initializer(*initargs)


def _call_in(func: Func, cell: _Cell, /, *args: Any, **kwds: Any) -> Any:
    """Run a task of a native pool, which passes the worker's context."""
    if cell is not _everywhere:
        _own.cell = cell
    return func(cell.value, *args, **kwds)


def _call(func: Func, /, *args: Any, **kwds: Any) -> Any:
    """Run a task of the engine's."""
    return func(CtxPoolStorage.storage, *args, **kwds)
