"""Globals that cannot be pickled: those that begin anew in each process, and placeholders.

A lock, an event, a queue without items, a ``threading.local``, a context variable or an idle
executor at module level is as after an import: new and free. Any other global that cannot be
pickled is a placeholder whose use raises the refusal.
"""

from __future__ import annotations

import _thread
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from typing_extensions import override

from pparallel.errors import SerializationError
from pparallel_serializers.bytype import ByType

Fresh = Callable[[Any], Any]


class Placeholder:
    """Stands for a global that could not be pickled; any use of it raises why."""

    def __init__(self, what: str, why: str) -> None:
        vars(self).update(_what=what, _why=why)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise SerializationError(vars(self)["_what"], vars(self)["_why"])

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return Placeholder, (vars(self)["_what"], vars(self)["_why"])

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked by what looks for a kind of object
            raise AttributeError(name)
        self._refuse()

    __setattr__ = __delattr__ = __call__ = __enter__ = __exit__ = _refuse
    __getitem__ = __setitem__ = __delitem__ = __iter__ = __next__ = __len__ = _refuse
    __contains__ = __bool__ = __await__ = __aenter__ = __aexit__ = __aiter__ = __add__ = _refuse


def make_context_variable(name: str, *default: Any) -> contextvars.ContextVar[Any]:
    """Return a new context variable."""
    given: dict[str, Any] = {"default": default[0]} if default else {}
    return contextvars.ContextVar(name, **given)


def _queue(each: queue.Queue[Any]) -> Any:
    if not each.empty():
        raise TypeError(f"cannot pickle {type(each).__name__!r} object: it holds items")
    return type(each), (each.maxsize,)


def _simple_queue(each: queue.SimpleQueue[Any]) -> Any:
    if not each.empty():
        raise TypeError("cannot pickle 'SimpleQueue' object: it holds items")
    return queue.SimpleQueue, ()


def _context_variable(each: contextvars.ContextVar[Any]) -> Any:
    return make_context_variable, (each.name, *contextvars.Context().run(_default, each))


def _default(each: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    try:
        return (each.get(),)
    except LookupError:
        return ()


def _executor(each: Any) -> Any:
    waiting = getattr(each, "_pending_work_items", None)  # of processes
    if waiting or (waiting is None and not each._work_queue.empty()):
        raise TypeError(f"cannot pickle {type(each).__name__!r} object: it has work to do")
    named = getattr(each, "_thread_name_prefix", None)  # in its place, processes have a context
    return type(each), (each._max_workers, named, each._initializer, each._initargs)


def _thread_pools() -> dict[type, Fresh]:
    from concurrent.futures import ThreadPoolExecutor

    return {ThreadPoolExecutor: _executor}


def _process_pools() -> dict[type, Fresh]:
    from concurrent.futures import ProcessPoolExecutor

    return {ProcessPoolExecutor: _executor}


def _semaphore(each: Any) -> Any:
    return type(each), (getattr(each, "_initial_value", max(each._value, 1)),)


#: how a global that holds an object of exactly these types is sent
reducers: ByType[Fresh] = ByType(
    {
        _thread.LockType: lambda _: (threading.Lock, ()),
        type(threading.RLock()): lambda _: (threading.RLock, ()),
        threading.Condition: lambda each: (threading.Condition, (each._lock,)),
        threading.Event: lambda _: (threading.Event, ()),
        threading.Semaphore: _semaphore,
        threading.BoundedSemaphore: _semaphore,
        threading.Barrier: lambda each: (
            threading.Barrier,
            (each.parties, each._action, each._timeout),
        ),
        threading.local: lambda _: (threading.local, ()),
        queue.Queue: _queue,
        queue.LifoQueue: _queue,
        queue.PriorityQueue: _queue,
        queue.SimpleQueue: _simple_queue,
        contextvars.ContextVar: _context_variable,
        weakref.WeakKeyDictionary: lambda _: (weakref.WeakKeyDictionary, ()),
    },
    {
        "concurrent.futures.thread": _thread_pools,
        "concurrent.futures.process": _process_pools,
    },
)
