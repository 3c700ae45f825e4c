"""Turns whatever goes wrong into a ``SerializationError`` that names the object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from reprlib import repr as short
from traceback import walk_tb
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.runtime.plain import PLAIN
from pparallel_serializers.by_value import names

_SEARCHED = 100_000  #: objects looked at for the one at fault
_PACKAGE = __name__.rpartition(".")[0]
_HOOKS = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")
_CODE = (FunctionType, BuiltinFunctionType, type, ModuleType)
_NAMES = {"_thread.lock": "threading.Lock", "weakref.ReferenceType": "weakref.ref"}
_NAMES |= {"_thread.RLock": "threading.RLock", "_thread._local": "threading.local"}
_NAMES["torch.jit.Future"] = "torch.futures.Future"

#: a better way than to send an object of these types
_ADVICE = {
    "make it at module level or in a pool's initializer": """threading.Lock threading.RLock
        threading.local threading.Condition threading.Event threading.Semaphore threading.Barrier
        threading.Thread queue.Queue queue.SimpleQueue concurrent.futures._base.Executor
        contextvars.ContextVar""",
    "open it where it is used or in a pool's initializer": "_IOBase socket.socket mmap.mmap "
    "sqlite3.Connection sqlite3.Cursor",
    "pass or return a list, or use a pool's imap": "generator async_generator",
    "pass the DataLoader": "torch.utils.data.dataloader._BaseDataLoaderIter",
    "pass its result": "coroutine concurrent.futures._base.Future asyncio.Future",
    "pass its result, or return a concurrent.futures.Future": "torch.futures.Future",
    "pass the object itself": "weakref.ref weakref.ProxyType",
}
_ADVICE = {kind: text for text, kinds in _ADVICE.items() for kind in kinds.split()}


class RefusedError(Exception):
    """A refusal with its reason in full; *culprit* is the part of the object at fault, if known."""

    def __init__(self, why: str, culprit: object = None) -> None:
        super().__init__(why)
        self.culprit = culprit


def described(obj: Any) -> str:
    """Return the type of *obj* as users know it; of functions, classes and modules the name."""
    if not issubclass(type(obj), _CODE):
        return _known_as(type(obj))
    word = "class" if isinstance(obj, type) else type(obj).__name__.removeprefix("builtin_")
    return f"{word.partition('_')[0]} {getattr(obj, '__qualname__', obj.__name__)}"


def advice(obj: object) -> str:
    """Return a better way than to send *obj*, as the end of a message, or an empty string."""
    known = [_ADVICE[each] for each in map(_known_as, type(obj).__mro__) if each in _ADVICE]
    return f"; {known[0]}" if known else ""


def reason(error: Exception) -> str:
    """Return the text of *error*, with its type."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - it comes out of the object's own hooks
        message = "<its message cannot be read>"
    if isinstance(error, RefusedError):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def dump_refusal(obj: object, error: Exception, memo: Any = None) -> SerializationError:
    """Return the error that says where in *obj* the culprit is.

    Args:
        obj: the object that could not be pickled.
        error: the error that pickling raised.
        memo: that of the pickler, if it calls hooks.
    """
    written = sorted(memo.copy().values(), key=itemgetter(0)) if memo is not None else ()
    why, search = reason(error), _Search(error)
    if any(isinstance(each, RecursionError) for each in (error, error.__cause__)):
        found, why = search.deep(obj), f"it is nested too deeply ({why})"
    else:
        found = search.culprit(obj, [each for _, each in written])
        why += "" if isinstance(error, RefusedError) else advice(found.obj)
    path = "".join(each.step for each in found.chain())
    return SerializationError(described(found.obj), why, path=path)


def load_refusal(buffers: Sequence[Buffer], error: Exception) -> SerializationError:
    """Return the error that says what came."""
    length = memoryview(buffers[0]).nbytes if buffers else 0
    what = f"the object in a stream of {length} bytes and {max(len(buffers) - 1, 0)} buffers"
    return SerializationError(what, reason(error), loading=True)


class _Node(NamedTuple):
    """A part of another object, and the step that leads to it from there."""

    parent: _Node | None
    step: str
    obj: Any

    def chain(self) -> list[_Node]:
        """Return the parts that lead to it, from the root."""
        found = [self]
        while parent := found[0].parent:
            found.insert(0, parent)
        return found


class _Search:
    """Looks for the object at fault where pickle came by, breadth first.

    Hooks that are written in Python are not called again, for they may have effects (a remote
    reference counts its holders). The pickler remembers the state that they returned.
    """

    def __init__(self, error: Exception) -> None:
        self._reason, self._known = reason(error), getattr(error, "culprit", None)
        if not isinstance(error, RefusedError):
            self._known = _innermost_hook(error)
        self._seen: dict[int, object] = {}
        self._opaque: dict[int, _Node] = {}  # those with such hooks

    def deep(self, obj: object) -> _Node:
        """Return the object that is nested too deeply: *obj*, or one in the tuples of a call."""
        self._first([_Node(None, "", obj)])
        return next(each for each in self._last.chain() if not isinstance(each.obj, tuple))

    def culprit(self, obj: object, written: Sequence[object]) -> _Node:
        root, owner = _Node(None, "", obj), None
        found = self._first([root])
        for each in written if found is None else ():
            if (owner := self._opaque.get(id(each), owner)) and type(each) is dict:
                found = found or self._first([_Node(owner, f".{k}", v) for k, v in each.items()])
        for node in list(self._opaque.values()) if found is None else ():
            found = found or self._first(_parts(node, _attributes))
        chain = (found or root).chain()  # a lock inside an event is the event's
        return next((each for each in chain if advice(each.obj)), chain[-1])

    def _first(self, pending: list[_Node]) -> _Node | None:
        for node in pending:
            if type(node.obj) in PLAIN or id(node.obj) in self._seen:
                continue
            if len(self._seen) == _SEARCHED:
                break
            self._seen[id(node.obj)], self._last = node.obj, node
            try:
                if self._is_at_fault(node.obj):
                    return node
                if _has_hooks(node.obj):
                    self._opaque[id(node.obj)] = node
                else:
                    pending += _parts(node, _children)
            except Exception:  # noqa: BLE001 - it may refuse to be looked at
                continue
        return None

    def _is_at_fault(self, obj: Any) -> bool:
        """Return whether the error speaks of *obj*, or came out of one of its own hooks."""
        if self._known is not None:
            return self._known is obj
        if issubclass(type(obj), (FunctionType, type)):
            return f"'{obj.__qualname__}'" in self._reason or repr(obj) in self._reason
        try:
            _has_hooks(obj) or obj.__reduce_ex__(5)
        except Exception as error:  # noqa: BLE001 - compared with what pickle met
            return reason(error) == self._reason
        return False


def _parts(node: _Node, parts: Callable[[Any], Iterator[tuple[str, object]]]) -> list[_Node]:
    try:
        return [_Node(node, *each) for each in parts(node.obj)]
    except Exception:  # noqa: BLE001 - it may refuse to be looked at
        return []


def _has_hooks(obj: object) -> bool:
    if issubclass(type(obj), (tuple, *_CODE)):
        return False
    hooks = [getattr(type(obj), each, None) for each in _HOOKS]
    return any(isinstance(e, FunctionType) and e.__module__ != "dataclasses" for e in hooks)


def _children(obj: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts of *obj* that pickle writes."""
    kind = type(obj)
    if kind is dict:
        yield from ((f"[{short(key)}]", value) for key, value in obj.items())
        yield from ((f" key {short(key)}", key) for key in obj)
    elif kind is list or isinstance(obj, tuple):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    elif isinstance(obj, (set, frozenset)):
        yield from (("{...}", value) for value in obj)
    elif isinstance(obj, (FunctionType, type)):
        by_name = names.find(obj.__module__, obj.__qualname__) is obj
        yield from () if by_name else _taken_along(obj)
    elif not isinstance(obj, _CODE):
        reduction: Any = (*obj.__reduce_ex__(5), None, None, None)
        args, state, items, pairs = reduction[1:5]
        known = {id(value): step for step, value in _attributes(obj)}
        for each in (*args, *(state if isinstance(state, (tuple, list)) else [state])):
            if type(each) is dict and id(each) not in known:
                yield from ((f".{name}", value) for name, value in each.items())
            else:
                yield ".__class__" if each is kind else known.get(id(each), ".__reduce__()"), each
        yield from ((f"[{index}]", value) for index, value in enumerate(items or ()))
        yield from ((f"[{short(key)}]", value) for key, value in pairs or ())


def _taken_along(obj: Any) -> Iterator[tuple[str, object]]:
    """Yield the objects that a function or a class by value takes along."""
    if not isinstance(obj, type):
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
            if cell != CellType():
                yield f" closing over {name}", cell.cell_contents
        yield from ((f".{name}", getattr(obj, name)) for name in ("__defaults__", "__kwdefaults__"))
    yield from (each for each in _attributes(obj) if each[0][1:3] != "__")


def _attributes(obj: Any) -> Iterator[tuple[str, object]]:
    """Yield the attributes of *obj*, also those in slots."""
    yield from ((f".{name}", value) for name, value in getattr(obj, "__dict__", {}).items())
    for name, each in [item for kind in type(obj).__mro__ for item in vars(kind).items()]:
        if type(each) is MemberDescriptorType and name != "__dict__":
            yield f".{name}", getattr(obj, name, None)


def _known_as(kind: type) -> str:
    module, name = kind.__module__, kind.__qualname__
    if module in ("builtins", "_io", "__main__"):
        return name
    return _NAMES.get(f"{module}.{name}") or f"{module.removeprefix('_')}.{name}"


def _innermost_hook(error: Exception) -> object:
    found = None
    for frame, _ in walk_tb(error.__traceback__):
        is_own = str(frame.f_globals.get("__name__")).startswith(_PACKAGE)
        if frame.f_code.co_name.startswith("__") and not is_own:
            found = frame.f_locals.get("self", found)
    return found
