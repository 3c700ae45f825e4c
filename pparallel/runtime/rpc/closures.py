"""Functions without a name that another member can find: sent once, and then meant by a number.

To write a function by value takes longer than all else that a call costs. One that takes along
nothing that may change gets a number when it is called the second time. It goes with the calls of
it until a member has said that it keeps it; from then on the number stands for it.

The code alone says which globals a function reads. Together with its closure, its defaults and
what it is called, they are all that a serializer sends of it. As long as each of these is the very
object that it was, and none can change by itself, the function is what it was too.

A member runs a request at most once and is, once it was lost, lost for good. So what it has said
that it keeps it has, and nobody need ask again.
"""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Iterator
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.plain import PLAIN

MOST = 512  #: functions that are kept of one sender
LARGEST = 2**16  #: bytes of a function that is kept

MAIN = frozenset({"__main__", "__mp_main__"})  #: modules that are others in other processes
DEEPEST = 8  #: tuples in one another that are looked through
LONGEST = 2**14  #: bytes or characters that are compared

_READ = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_WRITTEN = {"STORE_GLOBAL", "DELETE_GLOBAL"}
_CELL_WRITTEN = {"STORE_DEREF", "DELETE_DEREF"}
_WAYS_AROUND = frozenset({"eval", "exec", "globals"})  # to globals, unseen in the code

_NAMES = ("__module__", "__qualname__", "__name__")

_MISSING, _END = object(), object()

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

    def told(self, to: str, function: object) -> Told | None:
        """Return what stands for *function* in a call of it; ``None``: it must go along itself."""
        if type(function) is not FunctionType:
            return None
        if "<" not in function.__qualname__ and function.__module__ not in MAIN:
            return None  # it has a name
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

    def function(self, sender: str, session: int, told: Told) -> tuple[FunctionType, int]:
        """Return the function that *told* stands for, and its number if it is new and kept.

        Raises:
            SerializationError: it cannot be read, or never came.
        """
        number, news = told
        kept = self._kept.setdefault((sender, session), {})
        if sender in self._ended:  # what came before may run only now
            self._kept.pop((sender, session), None)
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

    def _load(self, data: Buffer) -> FunctionType:
        function = self._serializer.loads([data])
        if type(function) is not FunctionType:
            kind = type(function).__name__
            raise SerializationError("a function", f"it is a {kind}", loading=True)
        return function


def _is_as_it_was(kept: _Kept) -> bool:
    """Return whether it takes along the very same objects: ``1`` is not ``True``."""
    now, then = kept.reads.captured(kept.function), kept.captured
    return now is not None and len(now) == len(then) and all(map(is_, now, then))


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


def is_stable(captured: list[Any], serializer: Serializer) -> bool:
    """Return whether nothing in there can change: it is plain, or travels by its name."""
    named = [
        each for each in captured[1:] if not (_is_plain(each) or each is _MISSING or each is _END)
    ]
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
    except Exception as error:  # noqa: BLE001 - a serializer of others may refuse in any way
        raise_interrupt(error)
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
