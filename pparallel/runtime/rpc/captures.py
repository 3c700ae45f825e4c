"""What a function takes along when it travels by value, and whether any of it may change.

The code alone says which globals a function reads. Together with its closure, its defaults and
what it is called, they are all that a serializer sends of it. As long as each of these is the very
object that it was, and none can change by itself, the function is what it was too.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.plain import PLAIN

MAIN = frozenset({"__main__", "__mp_main__"})  #: modules that are others in other processes
DEEPEST = 8  #: tuples in one another that are looked through
LONGEST = 2**14  #: bytes or characters that are compared

_READ = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_WRITTEN = {"STORE_GLOBAL", "DELETE_GLOBAL"}
_CELL_WRITTEN = {"STORE_DEREF", "DELETE_DEREF"}
_WAYS_AROUND = frozenset({"eval", "exec", "globals"})  # to globals, unseen in the code

_NAMES = ("__module__", "__qualname__", "__name__")

_MISSING, _END = object(), object()


class Reads:
    """What the code of functions says of them.

    Attributes:
        code: the code, kept so that its id means it.
        names: the globals that it reads, also in functions within.
        lasting: whether a function with this code can run many times and be as new each time: it
            sets neither globals nor what it shares with the function that it was made in.
    """

    __slots__ = ("code", "lasting", "names")

    def __init__(self, code: CodeType) -> None:
        found = list(_instructions(code))
        self.code = code
        self.names = tuple(dict.fromkeys(name for kind, name in found if kind in _READ))
        self.lasting = _WAYS_AROUND.isdisjoint(self.names) and not any(
            kind in _WRITTEN or (kind in _CELL_WRITTEN and name in code.co_freevars)
            for kind, name in found
        )

    def captured(self, function: FunctionType) -> list[Any] | None:
        """Return the objects that *function* takes along; ``None``: that cannot be told."""
        if function.__dict__:
            return None
        namespace = function.__globals__
        found: list[Any] = [
            namespace,
            function.__name__,
            function.__qualname__,
            function.__module__,
            function.__doc__,
            function.__defaults__,
        ]
        if closure := function.__closure__:
            try:
                found += [cell.cell_contents for cell in closure]
            except ValueError:  # one is empty
                return None
        if self.names:
            found += [namespace.get(name, _MISSING) for name in self.names]
        for more in (function.__kwdefaults__, function.__annotations__):
            if more:
                found += [_END, *more, *more.values()]
        return found

    def shared(self, function: FunctionType) -> bytes:
        """Return what the globals are that *function* shares with all of its ``__main__``.

        Where these arrive, any other function may bring others along. It is nothing where a
        function has globals of its own, or those of a module that is found by its name.
        """
        namespace = function.__globals__
        if namespace.get("__name__") not in MAIN:
            return b""
        import marshal

        described: Any = [_described(namespace.get(name, _MISSING)) for name in self.names]
        return marshal.dumps(described, 2)


def same(some: list[Any], others: list[Any]) -> bool:
    """Return whether both are the very same objects: ``1`` is not ``True``."""
    return len(some) == len(others) and all(map(is_, some, others))


def is_stable(captured: list[Any], serializer: Serializer) -> bool:
    """Return whether nothing in there can change: it is plain, or travels by its name."""
    named = [each for each in captured[1:] if not (_is_plain(each) or _is_mark(each))]
    return all(map(_may_have_a_name, named)) and all(
        type(each) is ModuleType or travels_by_name(each, serializer) for each in named
    )


def travels_by_name(what: Any, serializer: Serializer) -> bool:
    """Return whether *serializer* sends a function or class by its name."""
    found: Any = sys.modules.get(what.__module__)
    for part in what.__qualname__.split("."):
        found = getattr(found, part, _MISSING)
    if found is not what or what.__module__ in MAIN:
        return False
    try:
        frames = serializer.dumps(what)
    except Exception:  # noqa: BLE001 - a serializer of others may refuse in any way
        return False
    import pickle  # a serializer that sends functions has it loaded

    return len(frames) == 1 and bytes(memoryview(frames[0])) == pickle.dumps(what, 5)


def _may_have_a_name(what: object) -> bool:
    if type(what) is BuiltinFunctionType:
        return type(what.__self__) is ModuleType  # or it is a method of some object
    return type(what) in (FunctionType, ModuleType) or isinstance(what, type)


def _is_plain(value: Any, depth: int = DEEPEST) -> bool:
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) <= LONGEST
    if kind is tuple:
        return depth > 0 and all(_is_plain(each, depth - 1) for each in value)
    return kind in PLAIN


def _is_mark(value: object) -> bool:
    return value is _MISSING or value is _END


def _described(value: Any) -> Any:
    """Return plain data, or a list for what is described by its name alone."""
    if _is_plain(value):
        return value
    return [] if value is _MISSING else [str(getattr(value, name, None)) for name in _NAMES]


def _instructions(code: CodeType) -> Iterator[tuple[str, Any]]:
    for each in dis.get_instructions(code):
        yield each.opname, each.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
