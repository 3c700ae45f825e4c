"""Functions of ``__main__`` that another member has from an earlier call: these travel by name.

To write a function by value takes longer than all else that a call costs. A function that stands at
the top of the script is sent once to each member, and counts as sent when the result of a call that
carried it is there. It is sent again when it, or code of the script that it reads, has changed. A
member keeps its own values of all else, so these do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from pparallel.runtime.code import names_in

MAIN = frozenset({"__main__", "__mp_main__"})  #: modules that are others in other processes
MOST = 512  #: functions of each member that are kept

State = list[Any]  #: the objects that a function is made of; equal if they are the same objects


class SentFunctions:
    """The functions that this member has sent.

    No lock is taken: at worst two threads do the same work.
    """

    def __init__(self) -> None:
        self._names: dict[Any, tuple[str, ...]] = {}  # by code: globals that are code of the script
        self._sent: dict[str, dict[str, State]] = {}

    def state(self, function: object) -> State | None:
        """Return what *function* is made of; ``None``: it is none that may travel by name."""
        if not isinstance(function, FunctionType) or function.__module__ not in MAIN:
            return None
        namespace = function.__globals__
        there: object = namespace.get(function.__qualname__)
        if there is not function:
            return None
        names = self._names.get(function.__code__)
        if names is None:
            if len(self._names) >= MOST:  # of code that is made over and over again
                self._names.clear()
            names = self._names[function.__code__] = _code_read(function)
        found: State = [function, *_parts(function)]
        for name in names:
            value = namespace.get(name)
            found.append(value)
            found.extend(_parts(value))
        return found

    def has(self, to: str, function: Any, state: State) -> bool:
        """Return whether member *to* has *function* as it is."""
        sent = self._sent.get(to, {}).get(function.__qualname__)
        if sent is None:
            return False
        if len(sent) == len(state) and all(map(_is, sent, state)):
            return True
        self._names.pop(function.__code__, None)  # what it reads may have come to read other code
        self._sent[to].pop(function.__qualname__, None)
        return False

    def note(self, to: str, function: Any, state: State) -> None:
        """Take note that member *to* has *function*."""
        sent = self._sent.setdefault(to, {})
        if len(sent) < MOST:
            sent[function.__qualname__] = state


class ReceivedFunctions:
    """The functions of other members' scripts that this member has."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}

    def keep(self, sender: str, function: Any) -> None:
        """Keep *function* for calls by its name, if it may travel so."""
        is_at_the_top = type(function) is FunctionType and function.__qualname__.isidentifier()
        if is_at_the_top and function.__module__ in MAIN:
            kept = self._kept.setdefault(sender, {})
            if len(kept) < MOST or function.__qualname__ in kept:
                kept[function.__qualname__] = function

    def forget(self, sender: str) -> None:
        """Keep nothing of *sender*, which has ended."""
        self._kept.pop(sender, None)

    def get(self, sender: str, name: str) -> Any:
        """Return the function of that name that *sender* has sent last, or None."""
        return self._kept.get(sender, {}).get(name)


def _is(one: object, other: object) -> bool:
    return one is other


def _code_read(function: FunctionType) -> tuple[str, ...]:
    """Return the names of functions and classes of ``__main__`` that *function* reaches."""
    namespace = function.__globals__
    found: dict[str, None] = {}
    pending: list[Any] = [function]
    for each in pending:
        for name in names_in(each.__code__).used:
            value = namespace.get(name)
            if name not in found and _is_of_script(value):
                found[name] = None
                pending += [part for part in (value, *_parts(value)) if type(part) is FunctionType]
    return tuple(found)


def _is_of_script(value: Any) -> bool:
    is_code = type(value) is FunctionType or isinstance(value, type)
    return is_code and value.__module__ in MAIN


def _parts(code: Any) -> Iterator[Any]:
    """Yield the parts of a function or class of ``__main__``."""
    if type(code) is FunctionType:
        yield from (code.__code__, code.__defaults__, code.__kwdefaults__)
    elif isinstance(code, type) and code.__module__ in MAIN:
        for part in vars(code).values():
            plain = _plain(part)
            if type(plain) is FunctionType:
                yield plain
                yield from _parts(plain)
            else:
                yield part
        for base in code.__bases__:
            yield from _parts(base)


def _plain(part: Any) -> Any:
    """Return the function in *part* of a class, if it is wrapped."""
    if isinstance(part, property):
        return part.fget
    return part.__func__ if isinstance(part, (classmethod, staticmethod)) else part
