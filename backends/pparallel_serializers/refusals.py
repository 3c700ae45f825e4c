"""Turns whatever goes wrong into a ``SerializationError`` that names the object."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from types import CellType, FunctionType, TracebackType
from typing import Any

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.runtime.interrupts import raise_interrupt

_SEARCHED = 10_000  #: objects looked at for the one at fault
_PACKAGE = __name__.rpartition(".")[0]
_NAMED = re.compile(r"(?:cannot pickle|can't pickle|pickle)\s+'?([\w.<>]+)'?\s+objects?", re.I)


class RefusedError(Exception):
    """What ``safe`` says no to, in full; *culprit* is the part of the object at fault, if known."""

    def __init__(self, why: str, culprit: object = None) -> None:
        super().__init__(why)
        self.culprit = culprit


def dump_refusal(obj: object, error: Exception) -> SerializationError:
    """Return the error that says where in *obj* the culprit is."""
    return SerializationError(_culprit(obj, error), _reason(error))


def load_refusal(buffers: Sequence[Buffer], error: Exception) -> SerializationError:
    """Return the error that says what came."""
    length = memoryview(buffers[0]).nbytes if buffers else 0
    what = f"the object in a stream of {length} bytes and {max(len(buffers) - 1, 0)} buffers"
    return SerializationError(what, _reason(error), loading=True)


def _reason(error: Exception) -> str:
    message = _message(error)
    if isinstance(error, RefusedError):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception as unreadable:  # noqa: BLE001 - it comes out of the object's own hooks
        raise_interrupt(unreadable)
        return "<its message cannot be read>"


def _culprit(obj: object, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"{_described(obj)}, nested too deeply,"
    message = _message(error)
    for path, each in _walk(obj):
        if _is_at_fault(each, error, message):
            return f"{_described(each)} at {path}" if path else _described(each)
    known = error.culprit if isinstance(error, RefusedError) else None
    return _described(obj if known is None else known)


def _is_at_fault(obj: object, error: Exception, message: str) -> bool:
    """Return whether *error* speaks of *obj*, or came out of one of its own hooks."""
    if isinstance(error, RefusedError):
        return error.culprit is obj is not None
    # Never by pickling it again: hooks may have effects (a remote reference counts its holders).
    hook = _innermost_hook(error.__traceback__)
    if hook is not None:
        return hook is obj
    named = _NAMED.search(message)
    if named:
        kind = type(obj)
        return named[1] in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}")
    if issubclass(type(obj), (FunctionType, type)):
        return any(name in message for name in _names(obj))
    return False


def _names(obj: Any) -> tuple[str, ...]:
    try:
        return f"{obj.__module__}.{obj.__qualname__}", repr(obj)
    except Exception as refused:  # noqa: BLE001 - a metaclass may refuse
        raise_interrupt(refused)
        return ()


def _innermost_hook(traceback: TracebackType | None) -> object:
    found = None
    while traceback is not None:
        frame = traceback.tb_frame
        module = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name.startswith("__") and not module.startswith(_PACKAGE):
            found = frame.f_locals.get("self", found)
        traceback = traceback.tb_next
    return found


def _described(obj: object) -> str:
    try:
        text = reprlib.repr(obj)
    except Exception as error:  # noqa: BLE001 - a repr that fails must not hide the error it describes
        raise_interrupt(error)
        text = "<its repr fails>"
    return f"{type(obj).__module__}.{type(obj).__qualname__} {text}".removeprefix("builtins.")


def _walk(obj: object) -> Iterator[tuple[str, object]]:
    """Yield what *obj* is made of, breadth first, each with the path that leads to it."""
    pending: list[tuple[str, object]] = [("", obj)]
    seen: set[int] = set()
    for path, each in pending:
        if id(each) in seen:
            continue
        if len(seen) == _SEARCHED:
            return
        seen.add(id(each))
        yield path, each
        pending.extend((path + step, child) for step, child in _children(each))


def _children(obj: object) -> list[tuple[str, object]]:
    try:
        return _children_of_any(obj)
    except Exception as refused:  # noqa: BLE001 - an object that refuses to be looked at hides no error
        raise_interrupt(refused)
        return []


def _children_of_any(obj: Any) -> list[tuple[str, object]]:
    if isinstance(obj, Mapping) and type(obj).__module__ in ("builtins", "collections"):
        return [(f"[{reprlib.repr(key)}]", value) for key, value in obj.items()]
    if isinstance(obj, (list, tuple)):
        return [(f"[{index}]", value) for index, value in enumerate(obj)]
    if isinstance(obj, (set, frozenset)):
        return [("{...}", value) for value in obj]
    if isinstance(obj, FunctionType):
        return _children_of_function(obj)
    if isinstance(obj, type):
        return []
    attributes = [(f".{name}", value) for name, value in getattr(obj, "__dict__", {}).items()]
    bound_to = getattr(obj, "__self__", None)
    return attributes + ([] if bound_to is None else [(".__self__", bound_to)])


def _children_of_function(function: FunctionType) -> list[tuple[str, object]]:
    code = function.__code__
    cells: tuple[CellType, ...] = function.__closure__ or ()
    found: list[tuple[str, object]] = [
        (f" closing over {name}", cell.cell_contents)
        for name, cell in zip(code.co_freevars, cells, strict=True)
        if cell != CellType()
    ]
    named = [name for name in code.co_names if name in function.__globals__]
    return found + [(f" using global {name}", function.__globals__[name]) for name in named]
