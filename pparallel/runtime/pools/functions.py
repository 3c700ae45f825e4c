"""The functions that a pool's tasks call: turned into bytes once, and kept by the workers."""

from __future__ import annotations

import itertools
import pickle
import weakref
from collections import deque
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from pparallel.errors import SerializationError
from pparallel.interfaces.pool import name_of
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.pools.paces import Pace, Paces

_STATELESS = (BuiltinFunctionType, FunctionType, type)  #: what has a name, and no state to send


class Function:
    """A function on its way to the workers.

    Attributes:
        number: what the workers know it by.
        data: the function as bytes.
        pace: how long its tasks take.
        name: its qualified name.
    """

    __slots__ = ("_gone", "data", "name", "number", "pace")

    def __init__(
        self, number: int, data: list[bytes], pace: Pace, name: str, gone: deque[int]
    ) -> None:
        self.number = number
        self.data = data
        self.pace = pace
        self.name = name
        self._gone = gone

    def __del__(self) -> None:
        # Runs anywhere: it may only append.
        self._gone.append(self.number)


class Functions:
    """The functions of one pool.

    What goes by name is turned into bytes once. What goes by value, a closure or an object that
    can be called, and what uses names of ``__main__``, may have changed since it was sent: it is
    turned into bytes for each call, but once for all the items of that call. Where these are the
    same as before, so is what stands for it.

    Attributes:
        gone: the numbers of functions that nobody needs any longer.
    """

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self._paces = Paces()
        self._numbers = itertools.count(1)
        self._known: dict[int, tuple[weakref.ref[Any], Function, bool]] = {}
        self._last: dict[int, tuple[weakref.ref[Any], Function, bool]] = {}
        self.gone: deque[int] = deque()

    def known(self, func: Callable[..., Any]) -> Function | None:
        """Return what stands for *func* if it goes by name and was sent before."""
        known = self._known.get(id(func))
        return known[1] if known is not None and known[2] and known[0]() is func else None

    def find(self, func: Callable[..., Any], *, continues: bool) -> Function:
        """Return what stands for *func*.

        Args:
            func: the function.
            continues: the call for which it was turned into bytes goes on.

        Raises:
            SerializationError: it cannot be sent.
        """
        known = self._known.get(id(func))
        if known is not None and known[0]() is func and (continues or known[2]):
            return known[1]
        return self._take_up(func)

    def renew(self, func: Callable[..., Any]) -> None:
        """Say that a new call of *func* begins: what it captured may have changed."""
        known = self._known.get(id(func))
        if known is not None and not known[2]:
            self._known.pop(id(func), None)

    def _take_up(self, func: Callable[..., Any]) -> Function:
        try:
            frames = self._serializer.dumps(func)
        except SerializationError as error:
            error.locate({"": name_of(func)})
            raise
        data = [each if type(each) is bytes else bytes(each) for each in frames]
        known = self._last.get(id(func)) if _has_name(func) else None
        if known is not None and known[0]() is func and known[1].data == data:
            self._known[id(func)] = known
            return known[1]
        found = Function(next(self._numbers), data, self._paces.of(func), name_of(func), self.gone)
        key = id(func)

        def forget(_: object, known: Any = (self._known, self._last)) -> None:
            for each in known:
                each.pop(key, None)

        try:
            reference = weakref.ref(func, forget)
        except TypeError:
            return found  # it cannot be told from its successor at the same address
        self._last[key] = self._known[key] = reference, found, data == [_by_name(func)]
        return found


def _has_name(func: Callable[..., Any]) -> bool:
    """Return whether *func* has no state that begins anew with each call, as closures have."""
    return isinstance(func, FunctionType | type) and "<" not in func.__qualname__


def _by_name(func: Callable[..., Any]) -> bytes | None:
    """Return what a serializer makes of *func* if it sends its name alone.

    An object of an importable class is no name: plain pickle writes its state.
    """
    owner = getattr(func, "__self__", None)
    if not isinstance(func, _STATELESS) or not isinstance(owner, ModuleType | type | None):
        return None
    try:
        return pickle.dumps(func, 5)
    except Exception:  # noqa: BLE001 - then it has no name, whatever the reason
        return None
