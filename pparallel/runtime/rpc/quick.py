"""The quick form of calls: a function that both ends find by its name, with plain data.

Most calls are of this kind. To write and read them with :mod:`marshal` takes a tenth of what a
pickle does, and the transports' hello has made sure that both ends run the same Python. Arguments
that are not plain travel beside it, as the serializer writes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from sys import modules
from types import FunctionType
from typing import Any, NoReturn

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Frames
from pparallel.runtime.plain import PLAIN
from pparallel.runtime.rpc import wire
from pparallel.runtime.rpc.closures import MAIN, Told, travels_by_name
from pparallel.runtime.rpc.refs import Registered
from pparallel.runtime.user_code import run

_VERSION = 2  #: of marshal's format: the last one without references, three times as quick

Name = tuple[str, str]  #: module and name of a function, group and key of a service


class Quick:
    """Writes and reads the quick form, as far as a serializer would do the same at length.

    A function is named only if the serializer sends it by its name too; with one that sends no
    functions at all, such as ``safe``, none is named, and none that is named is run.

    Attributes:
        trusts: whether functions are sent at all, and run when they come.
        read: returns what was written; raises ``SerializationError`` where nothing is taken that
            is not written by the serializer.
    """

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self._named: dict[object, Name] = {}  # functions that were found to travel by name
        self.trusts = self._names(importlib.import_module) is not None
        self.read: Callable[[Buffer], Any] = self._refuse
        if self.trusts:  # else there is no need of what reads more than data
            import marshal

            self._dumps: Callable[[Any, int], bytes] = marshal.dumps
            self.read = marshal.loads

    def call(
        self, what: object, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> bytes | None:
        """Return a call of *what* as bytes; ``None``: it has no quick form.

        Args:
            what: a function, a service, or what :class:`SentFunctions` tells of a function.
            args: the arguments; ``None``: they travel beside it, as the serializer writes them.
            kwargs: those that have a name.
        """
        is_plainest = not kwargs and type(args) is tuple and PLAIN.issuperset(map(type, args))
        if not (is_plainest or is_plain(() if args is None else args, kwargs)):
            return None
        name: Name | Told | None
        if type(what) is FunctionType:
            name = self.name(what)
        elif type(what) is tuple:
            name = what
        else:
            name = (what[0], what[1]) if isinstance(what, Registered) and self.trusts else None
        if name is None:
            return None
        try:  # as _written(), a call more than which is felt here
            return self._dumps((name, args, kwargs or None), _VERSION)
        except (ValueError, MemoryError):
            return None

    def name(self, what: FunctionType) -> Name | None:
        """Return the name by which a function travels, if it does."""
        name = self._named.get(what)
        if name is not None:  # as _there(), which would cost as much again
            module = modules.get(name[0])
            # As pickle does: what a name stands for may have changed.
            if module is not None and module.__dict__.get(name[1]) is what:
                return name
        return self._names(what)

    def is_small(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None, most: int) -> bool:
        """Return whether these are at most *most* bytes of plain data."""
        is_plainest = not kwargs and type(args) is tuple and PLAIN.issuperset(map(type, args))
        if not ((is_plainest or is_plain(args, kwargs)) and self.trusts):
            return False
        # To write them tells their size sooner than to ask each for its own.
        try:
            return len(self._dumps((args, kwargs) if kwargs else args, _VERSION)) <= most
        except (ValueError, MemoryError):
            return False

    def read_call(self, body: Frames) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        """Return what stands for a function or service, and what it is called with."""
        name, args, kwargs = self.read(body[0])
        if args is None:
            args = self._serializer.loads(body[1:])
        return name, args, kwargs or {}

    def run(self, frames: Frames) -> Frames | None:
        """Run a call and return the reply; ``None``: it is not one of a function by its name.

        Raises:
            BaseException: what the function raised.
        """
        data = frames[1]
        name, args, kwargs = self.read(data)
        if type(name[0]) is int:
            return None
        if args is None:
            args = self._serializer.loads(frames[2:])
        module = modules.get(name[0])  # as _there()
        function = (module and module.__dict__.get(name[1])) or self.function(name)
        value = run(function, args, kwargs)
        # As value(), which most calls are spared.
        written = self._written(value) if type(value) in PLAIN else self.value(value)
        if written is not None:
            return [wire.QUICK_OK, written]
        return wire.result(self._serializer, value)

    def dumps(self, data: object) -> bytes:
        """Return data of which all is plain, as bytes that :attr:`read` reads."""
        return self._dumps(data, _VERSION)

    def service(self, key: str, body: object) -> bytes | None:
        """Return what is asked of a service; ``None``: it has no quick form."""
        return self._written((key, body)) if self._is_plain(body) else None

    def value(self, value: object) -> bytes | None:
        """Return what a call or a service returns as bytes; ``None``: it has no quick form."""
        return self._written(value) if self._is_plain(value) else None

    def _written(self, data: object) -> bytes | None:
        try:
            return self._dumps(data, _VERSION)
        except (ValueError, MemoryError):  # bytes of 2 GiB and more, of which it knows no form
            return None

    def _is_plain(self, body: object) -> bool:
        if type(body) in PLAIN or (type(body) is tuple and PLAIN.issuperset(map(type, body))):
            return self.trusts
        return False

    def _refuse(self, _: Buffer) -> NoReturn:
        what = f"what was not written by {type(self._serializer).__name__}"
        raise SerializationError(what, "it is taken from nobody", loading=True)

    def _names(self, what: object) -> Name | None:
        """Return the name by which the serializer sends *what*, if it does."""
        module, name = getattr(what, "__module__", None), getattr(what, "__qualname__", "")
        if type(what) is not FunctionType or module in (None, *MAIN):
            return None
        if not name.isidentifier():
            return None
        if not travels_by_name(what, self._serializer):
            return None
        found = str(module), str(name)
        self._named[what] = found
        return found

    def function(self, name: Name) -> Callable[..., Any]:
        """Return the function of that name.

        Raises:
            SerializationError: there is none here.
        """
        function: Callable[..., Any] | None = _there(name)
        if function is None:
            try:
                importlib.import_module(name[0])
            except ImportError as error:
                what = f"function {'.'.join(name)}"
                raise SerializationError(what, error, loading=True) from error
            function = _there(name)
        if not callable(function):
            why = "there is none of that name"
            raise SerializationError(f"function {'.'.join(name)}", why, loading=True)
        return function


def is_plain(args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> bool:
    """Return whether arguments are plain data, so that they have a quick form."""
    if type(args) is not tuple or not PLAIN.issuperset(map(type, args)):
        return False
    if not kwargs:
        return True
    return type(kwargs) is dict and PLAIN.issuperset(map(type, chain(kwargs, kwargs.values())))


def _there(name: Name) -> Any:
    module = modules.get(name[0])
    return None if module is None else vars(module).get(name[1])
