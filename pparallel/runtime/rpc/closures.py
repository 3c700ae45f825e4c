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

News = tuple[bytes, bytes]  #: a function as the serializer writes it, and the globals it shares
Told = tuple[int, News | None]  #: the number of a function, and the function where it is new


class _Sent(NamedTuple):
    """A function that has a number.

    Attributes:
        number: from 1 on.
        news: the function itself.
        captured: what it takes along; kept, for what it is known by are ids.
    """

    number: int
    news: News
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
        self._seen: dict[Key, Reads] = {}  # called, but not sent yet
        self._reads: dict[int, Reads] = {}  # by the id of the code, which they keep
        self._last: dict[int, _Last] = {}
        self._kept: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._sent)

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
            found = self._find(function, reads, captured)
            if found is None:
                return None
            sent = found
            self._last[id(code)] = _Last(captured, loaded, sent)
        return sent.number, None if sent.number in self._kept.get(to, ()) else sent.news

    def kept(self, by: str, number: int) -> None:
        """Send the function of that *number* no more: member *by* has it."""
        self._kept.setdefault(by, set()).add(number)

    def _look(self, function: FunctionType) -> Reads:
        if len(self._reads) >= MOST:  # of code that is made over and over again
            self._reads, self._last = {}, {}
        return self._reads.setdefault(id(function.__code__), Reads(function.__code__))

    def _find(self, function: FunctionType, reads: Reads, captured: list[Any]) -> _Sent | None:
        key = id(reads.code), *key_of(captured)
        sent = self._sent.get(key)
        if (
            sent is not None
            or not self._may_send(key, reads)
            or not is_stable(captured, self._serializer)
        ):
            return sent
        try:
            frames = self._serializer.dumps(function)
        except SerializationError:  # told by whoever then sends it at length
            return None
        data = b"".join(frames)
        if len(frames) != 1 or len(data) > LARGEST or travels_by_name(function, self._serializer):
            return None
        news = data, reads.shared(function)
        sent = _Sent(next(self._numbers), news, [reads.code, *captured])
        return self._sent.setdefault(key, sent)

    def _may_send(self, key: Key, reads: Reads) -> bool:
        if len(self._sent) < FREELY or key in self._seen:
            return len(self._sent) < MOST
        if len(self._seen) >= MOST:
            self._seen.clear()
        self._seen[key] = reads  # with the code, or its id would come to mean another
        return False


class _Kept(NamedTuple):
    function: Any  # a function, but as such it would be taken for a method
    news: News
    reads: Reads
    captured: list[Any]


class KeptFunctions:
    """The functions that other members have sent to this one, by their numbers."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self._kept: dict[tuple[str, int], dict[int, _Kept]] = {}  # by sender and its session
        self._ended: set[str] = set()

    def __len__(self) -> int:
        return sum(map(len, list(self._kept.values())))

    def function(self, sender: str, session: int, told: Told) -> tuple[FunctionType, int]:
        """Return the function that *told* stands for, and its number if it is new and kept.

        Raises:
            SerializationError: it cannot be read, or never came.
        """
        number, news = told
        kept = self._of(sender, session)
        found = kept.get(number)
        if found is not None and _is_as_it_was(found):
            return found.function, number if news else 0
        if found is not None:
            # What one member sends from its __main__ shares the globals there: another function
            # has brought others along. Read again, this one brings its own.
            news = found.news
        if news is None:
            what, why = f"function {number} of {sender!r}", "no earlier call brought it along"
            raise SerializationError(what, why, loading=True)
        function = self._load(news[0])
        reads = Reads(function.__code__)
        captured = reads.captured(function)
        if captured is None or (news[1] and reads.shared(function) != news[1]):
            return function, 0  # this process has set some of it, or is just being told others
        if number in kept or len(kept) < 2 * MOST:  # threads may send more than the sender counts
            kept[number] = _Kept(function, news, reads, captured)
        return function, number if number in kept else 0

    def forget(self, sender: str) -> None:
        """Forget the functions of a member that has ended, and keep no more of it."""
        self._ended.add(sender)
        for key in [key for key in list(self._kept) if key[0] == sender]:
            self._kept.pop(key, None)

    def _of(self, sender: str, session: int) -> dict[int, _Kept]:
        key = sender, session
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept.setdefault(key, {})
            if sender in self._ended:  # what came before may run only now
                self._kept.pop(key, None)
        return kept

    def _load(self, data: Buffer) -> FunctionType:
        function = self._serializer.loads([data])
        if type(function) is not FunctionType:
            kind = type(function).__name__
            raise SerializationError("a function", f"it is a {kind}", loading=True)
        return function


def _is_as_it_was(kept: _Kept) -> bool:
    now = kept.reads.captured(kept.function)
    return now is not None and same(now, kept.captured)


def _is_nameless(function: FunctionType) -> bool:
    return "<" in function.__qualname__ or function.__module__ in MAIN
