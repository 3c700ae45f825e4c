"""Functions without a name that another member can find: sent once, and then meant by a number.

To write a function by value takes longer than all else that a call costs. One that takes along
nothing that may change (see :mod:`~pparallel.runtime.rpc.captures`) gets a number. It goes with
the calls of it until a member has said that it keeps it; from then on the number stands for it.

A member runs a request at most once and is, once it was lost, lost for good. So what it has said
that it keeps it has, and nobody need ask again.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.rpc.captures import (
    MAIN,
    Key,
    Reads,
    is_stable,
    key_of,
    same,
    travels_by_name,
)

MOST = 512  #: functions that are kept of one sender
FREELY = 256  #: and those that are numbered when first called; further ones the second time
LARGEST = 2**16  #: bytes of a function that is kept

Told = tuple[int, bytes | None]  #: the number of a function, and the function where it is new


class _Sent(NamedTuple):
    """A function that has a number.

    Attributes:
        number: from 1 on.
        data: the function as the serializer writes it.
        captured: what it takes along; kept, for what it is known by are ids.
    """

    number: int
    data: bytes
    captured: list[Any]


class _Last(NamedTuple):
    """What was found the last time that a function with some code was called."""

    captured: list[Any]
    loaded: int
    sent: _Sent


class SentFunctions:
    """Numbers the functions that one member calls in others.

    No lock is taken: at worst two threads do the same work, and one of the results is used.
    """

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self._numbers = itertools.count(1)
        self._sent: dict[Key, _Sent] = {}
        self._seen: set[Key] = set()  # not sent yet, but called
        self._reads: dict[int, Reads] = {}  # by the id of the code, which they keep
        self._last: dict[int, _Last] = {}
        self._kept: defaultdict[str, set[int]] = defaultdict(set)

    def told(self, to: str, function: object) -> Told | None:
        """Return what stands for *function* in a call of it; ``None``: it must go along itself."""
        if type(function) is not FunctionType or not _is_nameless(function):
            return None
        code = function.__code__
        reads = self._reads.get(id(code)) or self._look(function)
        captured = reads.captured(function) if reads.lasting else None
        if captured is None:
            return None
        last, loaded = self._last.get(id(code)), len(sys.modules)
        if last is not None and last.loaded == loaded and same(last.captured, captured):
            sent = last.sent
        else:
            found = self._find(function, captured)
            if found is None:
                return None
            sent = found
            self._last[id(code)] = _Last(captured, loaded, sent)
        return sent.number, None if sent.number in self._kept[to] else sent.data

    def kept(self, by: str, number: int) -> None:
        """Send the function of that *number* no more: member *by* has it."""
        self._kept[by].add(number)

    def _look(self, function: FunctionType) -> Reads:
        if len(self._reads) >= MOST:  # of code that is made over and over again
            self._reads, self._last = {}, {}
        return self._reads.setdefault(id(function.__code__), Reads(function.__code__))

    def _find(self, function: FunctionType, captured: list[Any]) -> _Sent | None:
        key = key_of(captured, LARGEST)
        if key is None:
            return None
        key = id(function.__code__), *key
        return self._sent.get(key) or self._number(key, function, captured)

    def _number(self, key: Key, function: FunctionType, captured: list[Any]) -> _Sent | None:
        if len(self._sent) >= MOST or not is_stable(captured, self._serializer):
            return None
        if len(self._sent) >= FREELY and key not in self._seen:
            if len(self._seen) >= MOST:
                self._seen.clear()
            self._seen.add(key)
            return None
        try:
            frames = self._serializer.dumps(function)
        except SerializationError:  # told by whoever then sends it at length
            return None
        data = b"".join(frames)
        if len(frames) != 1 or len(data) > LARGEST:
            return None
        sent = _Sent(next(self._numbers), data, [function.__code__, *captured])
        return self._sent.setdefault(key, sent)


class _Kept(NamedTuple):
    function: Callable[..., Any]
    data: Buffer
    reads: Reads
    captured: list[Any] | None


class KeptFunctions:
    """The functions that other members have sent to this one, by their numbers."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self._kept: defaultdict[tuple[str, int], dict[int, _Kept]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, list(self._kept.values())))

    def function(self, sender: str, session: int, told: Told) -> tuple[Callable[..., Any], int]:
        """Return the function that *told* stands for, and its number if it is new and kept.

        Raises:
            SerializationError: it cannot be read, or was never sent.
        """
        number, data = told
        kept = self._kept[sender, session]
        found = kept.get(number)
        if found is None:
            if data is None:
                what, why = f"function {number} of {sender!r}", "it was not sent with an earlier call"
                raise SerializationError(what, why, loading=True)
            found = self._load(data)
            if len(kept) < 2 * MOST:  # the sender's threads may count more than it wants
                kept[number] = found
        elif found.captured is None or not _is_as_it_was(found):
            # What one member sends from its __main__ shares the globals: another function has
            # brought others along. Read again, this one brings its own.
            found = kept[number] = self._load(found.data)
        return found.function, number if data is not None and number in kept else 0

    def forget(self, sender: str) -> None:
        """Forget the functions of a member that has ended."""
        for key in [key for key in list(self._kept) if key[0] == sender]:
            self._kept.pop(key, None)

    def _load(self, data: bytes) -> _Kept:
        function = self._serializer.loads([data])
        if type(function) is not FunctionType:
            kind = type(function).__name__
            raise SerializationError("a function", f"it is a {kind}", loading=True)
        reads = Reads(function.__code__)
        return _Kept(function, data, reads, reads.captured(function))


def _is_as_it_was(kept: _Kept) -> bool:
    now = kept.reads.captured(kept.function)  # type: ignore[arg-type] # it is one
    return now is not None and kept.captured is not None and same(now, kept.captured)


def _is_nameless(function: FunctionType) -> bool:
    return "<" in function.__qualname__ or function.__module__ in MAIN
