"""Functions without a name that another member can find: sent once, and then meant by a number.

To write a function by value takes longer than all else that a call costs. One that takes along
nothing that may change (see :mod:`~pparallel.runtime.rpc.captures`) gets a number when it is called
the second time. It goes with the calls of it until a member has said that it keeps it; from then on
the number stands for it.

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
from pparallel.runtime.rpc.captures import MAIN, Reads, is_stable, same, travels_by_name

MOST = 512  #: functions that are kept of one sender
LARGEST = 2**16  #: bytes of a function that is kept

News = tuple[bytes, bytes]  #: a function as the serializer writes it, and the globals it shares
Told = tuple[int, News | None]  #: the number of a function, and the function where it is new


class _Last(NamedTuple):
    """What was found the last time that a function with some code was called.

    Attributes:
        reads: what the code says.
        ids: of what it took along, and how many modules were loaded: of a package, those go along.
        is_settled: whether it was called twice with these.
        told: the function and its number, if it has one.
        captured: what it took along then; kept, for it is known by its ids.
    """

    reads: Reads
    ids: list[int]
    is_settled: bool = False
    told: tuple[int, News] | None = None
    captured: list[Any] | None = None


class SentFunctions:
    """Numbers the functions that one member calls in others.

    No lock is taken: at worst two threads do the same work, and one of the results is used.
    """

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self._last: dict[int, _Last] = {}  # by the id of the code, which they keep
        self._numbers: dict[News, int] = {}
        self._number = itertools.count(1)
        self._kept: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def told(self, to: str, function: object) -> Told | None:
        """Return what stands for *function* in a call of it; ``None``: it must go along itself."""
        if type(function) is not FunctionType or not _is_nameless(function):
            return None
        code = function.__code__
        last = self._last.get(id(code)) or self._put(_Last(Reads(code), []))
        captured = last.reads.captured(function) if last.reads.lasting else None
        if captured is None:
            return None
        ids = [len(sys.modules), *map(id, captured)]
        if last.ids != ids:  # one that is made for one call costs no more than its own call
            self._put(_Last(last.reads, ids))
            return None
        if not last.is_settled:
            told = self._numbered(function, last.reads, captured)
            last = self._put(_Last(last.reads, ids, True, told, None if told is None else captured))
        if last.told is None:
            return None
        number, news = last.told
        return number, None if number in self._kept.get(to, ()) else news

    def kept(self, by: str, number: int) -> None:
        """Send the function of that *number* no more: member *by* has it."""
        self._kept.setdefault(by, set()).add(number)

    def _put(self, last: _Last) -> _Last:
        if len(self._last) >= MOST:  # of code that is made over and over again
            self._last = {}
        self._last[id(last.reads.code)] = last
        return last

    def _numbered(
        self, function: FunctionType, reads: Reads, captured: list[Any]
    ) -> tuple[int, News] | None:
        if not is_stable(captured, self._serializer):
            return None
        try:
            frames = self._serializer.dumps(function)
        except SerializationError:  # told by whoever then sends it at length
            return None
        data = b"".join(frames)
        if len(frames) != 1 or len(data) > LARGEST or travels_by_name(function, self._serializer):
            return None
        news = data, reads.shared(function)
        if len(self._numbers) < MOST or news in self._numbers:
            return self._numbers.setdefault(news, next(self._number)), news
        return None


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
