"""The picklers that also send code: functions, classes and what they are made of.

Of what a name of a script stands for, some begins anew in each process: a lock, an event, a queue
without items, a ``threading.local``, a context variable or an idle executor is as after an import,
new and free. Anything else that cannot be pickled is a placeholder whose use raises the refusal.
"""

from __future__ import annotations

import _thread
import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from sys import modules
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from typing_extensions import Buffer, override

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Carried
from pparallel_serializers import outofband
from pparallel_serializers.by_value import classes, functions, names, scripts
from pparallel_serializers.bytype import ByType
from pparallel_serializers.outofband import Reduction
from pparallel_serializers.refusals import RefusedError

#: kinds that are the same in each process, or the same as their copies
IMMUTABLE = (bool, bytes, complex, float, int, str, type(None), ModuleType, BuiltinFunctionType)


class CodePickler(outofband.OutOfBandPickler):
    """Sends by value the functions and classes that a receiver cannot import.

    Attributes:
        recurse: whether the globals of importable modules that sent functions name go by value too.
        carries: which names of a script go along with what uses them: all, those that this process
            did not get from elsewhere, or none.
        needed: the names that what is being pickled uses, and whether it refers to them itself.
        script: the script of which something is being pickled: the value of *group*.
        root: the name of a function or class that is being pickled as a definition.
        placeholders: placeholders for attributes of the class that cannot be pickled.
    """

    recurse = False
    carries: Carried = "all"
    script: scripts.Script | None = None
    group: tuple[str, ...] = ()
    root: str | None = None
    placeholders: Mapping[str, Any] = {}

    def __init__(self, share: frozenset[str] = frozenset()) -> None:
        super().__init__(share)
        self.namespaces: dict[int, functions.Globals] = {}
        #: cells that a function fills; kept, for their ids must not be used again
        self.cells: dict[int, CellType] = {}
        self.needed: dict[tuple[scripts.Script, str], bool] = {}

    @override
    def clear(self) -> None:
        self.namespaces.clear()
        self.cells.clear()
        self.needed.clear()
        super().clear()

    @override
    def take(self) -> list[Buffer]:
        needed = dict(self.needed)
        frames = super().take()
        if not needed or self.carries == "nothing":
            return frames
        from pparallel_serializers.by_value import units

        return units.joined(self, needed, frames)

    @override
    def reducer_override(self, obj: Any) -> Reduction:
        kind = type(obj)
        if kind is FunctionType or kind is type:
            # The common case, quickly: found in its module. See names.is_importable.
            name = obj.__module__
            module = modules.get(name)
            if getattr(module, obj.__qualname__, None) is obj and name not in names.MAIN:
                return NotImplemented
        reduce: Any = _reducers.get(kind)
        if reduce is None:
            reduce = outofband.reducers.get(kind)
            if reduce is None:
                if isinstance(obj, type):
                    return classes.reduce_class(self, obj)
                return NotImplemented
        return reduce(self, obj)

    def reference(self, obj: Any) -> Reduction | None:
        """Return how *obj* goes by its name in a script; ``None``: it has none, or is defined."""
        held = scripts.holding(obj)
        if held is None:
            return None
        script, path = held
        is_own = path in self.group if self.root is None else path.startswith(f"{self.root}.")
        return None if is_own and script is self.script else self.named(script, path)

    def named(self, script: scripts.Script, path: str) -> Reduction:
        """Return the reference to what has a name in *script*."""
        self.needed[script, path.partition(".")[0]] = True
        return scripts.find_named, (script.sent_uid(), path)

    def need(self, script: scripts.Script, used: Iterable[str]) -> None:
        """Note that what is being pickled uses these names of *script*."""
        for name in used:
            self.needed.setdefault((script, name), False)

    def by_name(self, obj: Any) -> Any:
        """Return *obj*, or a reference if it is itself the value of a name of the script."""
        if type(obj) in IMMUTABLE or isinstance(obj, (tuple, FunctionType, type)):
            return obj
        script = scripts.own()
        name = script.name_of(obj)
        if name is None:
            return obj
        find, args = self.named(script, name)
        return functions.Named(find, *args)


class UnitPickler(CodePickler):
    """Pickles what a name of a script stands for, or several names that share an object.

    Objects in there that are themselves the value of another name go by that name.

    Attributes:
        values: the names of all values by the ids of these, which last as long.
        begins_anew: something in the value is as after an import where it arrives.
    """

    values: dict[int, tuple[str, Any]]
    begins_anew = False

    @override
    def clear(self) -> None:
        self.root, self.begins_anew = None, False
        super().clear()

    def define(self, code: Any) -> None:
        """Pickle a function or class in two parts: how it is made, and then what fills it.

        What it is filled with may lead back to it. One that has another name goes by that.
        """
        (name,) = self.group
        if scripts.holding(code) != (self.script, name):
            self.dump(code)
            return
        self.root = name
        make, args, *filled = classes.definition(self, code)
        self.dump((make, args))
        self.dump(filled)

    @override
    def persistent_id(self, obj: Any) -> str | None:
        """Return the name of *obj*; functions and classes have theirs by themselves."""
        found = self.values.get(id(obj))
        if found is None or found[0] in self.group or isinstance(obj, (FunctionType, type)):
            return None
        assert self.script is not None
        self.needed[self.script, found[0]] = True
        return found[0]

    @override
    def reducer_override(self, obj: Any) -> Reduction:
        reduce = fresh.get(type(obj))
        if reduce is not None:
            if type(obj) is WeakKeyDictionary and len(obj) and self.root is None:
                raise RefusedError("a WeakKeyDictionary that holds items cannot be pickled", obj)
            self.begins_anew = True
            return reduce(obj)
        return super().reducer_override(obj)

    @override
    def by_name(self, obj: Any) -> Any:
        return obj


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


def _context_variable(each: contextvars.ContextVar[Any]) -> Any:
    try:
        given = {"default": contextvars.Context().run(each.get)}
    except LookupError:
        given = {}
    return functools.partial(contextvars.ContextVar, **given), (each.name,)


def _queue(each: Any) -> Any:
    if not each.empty():
        raise TypeError(f"cannot pickle {type(each).__name__!r} object: it holds items")
    return type(each), (each.maxsize,) if hasattr(each, "maxsize") else ()


def _executor(each: Any) -> Any:
    waiting = getattr(each, "_pending_work_items", None)  # of processes
    if waiting or (waiting is None and not each._work_queue.empty()):
        raise TypeError(f"cannot pickle {type(each).__name__!r} object: it has work to do")
    named = getattr(each, "_thread_name_prefix", None)  # in its place, processes have a context
    return type(each), (each._max_workers, named, each._initializer, each._initargs)


def _executors(name: str) -> Callable[[], dict[type, Callable[[Any], Any]]]:
    return lambda: {getattr(modules["concurrent.futures"], name): _executor}


def _semaphore(each: Any) -> Any:
    return type(each), (getattr(each, "_initial_value", max(each._value, 1)),)


#: how a global that holds an object of exactly these types is sent
fresh: ByType[Callable[[Any], Any]] = ByType(
    {
        _thread.LockType: lambda _: (threading.Lock, ()),
        type(threading.RLock()): lambda _: (threading.RLock, ()),
        threading.Condition: lambda each: (threading.Condition, (each._lock,)),
        **dict.fromkeys((threading.Semaphore, threading.BoundedSemaphore), _semaphore),
        threading.Barrier: lambda each: (
            threading.Barrier,
            (each.parties, each._action, each._timeout),
        ),
        **dict.fromkeys(
            (threading.Event, threading.local, WeakKeyDictionary), lambda each: (type(each), ())
        ),
        **dict.fromkeys(
            (queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue), _queue
        ),
        contextvars.ContextVar: _context_variable,
    },
    {
        "concurrent.futures.thread": _executors("ThreadPoolExecutor"),
        "concurrent.futures.process": _executors("ProcessPoolExecutor"),
    },
)

_reducers: dict[type, Callable[[CodePickler, Any], Reduction]] = {
    CellType: functions.reduce_cell,
    CodeType: lambda _, code: (functions.load_code, (functions.dump_code(code),)),
    FunctionType: functions.reduce_function,
    ModuleType: functions.reduce_module,
    functions.CACHED: functions.reduce_cached,
    **classes.reducers,
}
