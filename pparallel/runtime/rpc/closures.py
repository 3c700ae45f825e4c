"""Functions without a name that another member can find: sent once, and then meant by a number.

To write a function by value takes longer than all else that a call costs. One that takes along
nothing that may change gets a number when it is called the second time. It goes with the calls of
it until a member has said that it keeps it; from then on the number stands for it.

The code alone says which globals a function reads. Together with its closure, its defaults and
its names, they are all that a serializer sends of it. As long as each of these is the very object
that it was, and none can change by itself, the function is what it was too. Of ``__main__`` only
functions and classes count: a member keeps its own values of all else.

A member runs a request at most once and is, once it was lost, lost for good. So what it has said
that it keeps it has, and nobody need ask again.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any, NamedTuple

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.code import names_in
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.plain import PLAIN

MOST = 512  #: functions that are kept of one sender
LARGEST = 2**16  #: bytes of a function that is kept, without what it uses of ``__main__``

MAIN = frozenset({"__main__", "__mp_main__"})  #: modules that are others in other processes
DEEPEST = 8  #: tuples in one another that are looked through
LONGEST = 2**14  #: bytes or characters that are compared

_WAYS_AROUND = frozenset({"eval", "exec", "globals"})  # to globals, unseen in the code

_CODE = (FunctionType, type, type(functools.lru_cache(len)))
_OF_CLASSES = (CodeType, GetSetDescriptorType, MemberDescriptorType)

_MISSING, _END = object(), object()

Told = tuple[int, list[bytes] | None]  #: the number of a function, and its buffers where it is new


class _Last(NamedTuple):
    """The last look at a function with some code, when it was called.

    Attributes:
        reads: the names in the code.
        ids: of the objects that it took along, and how many modules were loaded: those of a
            package go along.
        is_settled: whether it was called twice with these.
        number: that of the function, if it has one.
        captured: the objects that it took along then; kept, for they are known by their ids.
    """

    reads: Reads
    ids: list[int]
    is_settled: bool = False
    number: int | None = None
    captured: list[Any] | None = None


class SentFunctions:
    """Numbers the functions that one member calls in others.

    No lock is taken: at worst two threads do the same work, and one of the results is used.
    """

    def __init__(self, serializer: Serializer) -> None:
        self._serializer, self._alone = serializer, serializer.carrying("nothing")
        self._last: dict[int, _Last] = {}  # by the id of the code, which they keep
        #: numbers, with the objects of the script whose ids are in the keys
        self._numbers: dict[tuple[bytes, tuple[int, ...]], tuple[int, list[Any]]] = {}
        self._number = itertools.count(1)
        self._kept: dict[str, set[int]] = {}

    def told(self, to: str, function: object) -> Told | None:
        """Return the number for *function* in a call of it; ``None``: it must go along itself."""
        if type(function) is not FunctionType:
            return None
        if "<" not in function.__qualname__ and function.__module__ not in MAIN:
            return None  # it has a name
        code = function.__code__
        last = self._last.get(id(code)) or self._put(_Last(Reads(function), []))
        captured = last.reads.captured(function) if last.reads.lasting else None
        if captured is None:
            return None
        ids = [len(sys.modules), *map(id, captured)]
        if last.ids != ids:  # one that is made for one call costs no more than its own call
            reads = Reads(function) if last.reads.is_of_script else last.reads
            captured = reads.captured(function) or []
            ids = [len(sys.modules), *map(id, captured)]
            last = self._put(_Last(reads, ids))
            if "<" in function.__qualname__:
                return None
        if not last.is_settled:
            number = self._numbered(function, last.reads, captured)
            kept = None if number is None else captured
            last = self._put(_Last(last.reads, ids, True, number, kept))
        number = last.number
        if number is None:
            return None
        if number in self._kept.get(to, ()):
            return number, None
        return number, [bytes(each) for each in self._serializer.dumps(function)]

    def kept(self, by: str, number: int) -> None:
        """Send the function of that *number* no more: member *by* has it."""
        self._kept.setdefault(by, set()).add(number)

    def _put(self, last: _Last) -> _Last:
        if len(self._last) >= MOST:  # of code that is made over and over again
            self._last = {}
        self._last[id(last.reads.code)] = last
        return last

    def _numbered(self, function: FunctionType, reads: Reads, captured: list[Any]) -> int | None:
        if not is_stable(captured, self._serializer):
            return None
        try:
            frames = self._alone.dumps(function)
        except SerializationError:  # raised by what then sends it at length
            return None
        data = b"".join(frames)
        if len(frames) != 1 or len(data) > LARGEST or travels_by_name(function, self._serializer):
            return None
        # Names of a script stand for other code when that is edited.
        named = [] if "<" in function.__qualname__ else [function]
        held = [*named, *captured] if reads.is_of_script else []
        news = data, tuple(map(id, held))
        if len(self._numbers) < MOST or news in self._numbers:
            return self._numbers.setdefault(news, (next(self._number), held))[0]
        return None


class KeptFunctions:
    """The functions that other members have sent to this one, by their numbers."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self._kept: dict[tuple[str, int], dict[int, Any]] = {}  # by sender and its session
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
        function = kept.get(number)
        if function is None:
            if news is None:
                what, why = f"function {number} of {sender!r}", "no earlier call brought it along"
                raise SerializationError(what, why, loading=True)
            function = self._load(news)
            if len(kept) >= 2 * MOST:  # threads may send more than the sender counts
                return function, 0
            kept[number] = function
        return function, number if news else 0

    def forget(self, sender: str) -> None:
        """Forget the functions of a member that has ended, and keep no more of it."""
        self._ended.add(sender)
        for key in [key for key in list(self._kept) if key[0] == sender]:
            self._kept.pop(key, None)

    def _load(self, data: Sequence[Buffer]) -> FunctionType:
        function = self._serializer.loads(data)
        if type(function) is not FunctionType:
            kind = type(function).__name__
            raise SerializationError("a function", f"it is a {kind}", loading=True)
        return function


class Reads:
    """The names in the code of functions, and what follows from them.

    Attributes:
        code: the code, kept so that its id means it.
        names: the globals that it reads, also in functions within, and of a script what the
            functions and classes of these names read.
        is_of_script: the globals are those of ``__main__``.
        lasting: whether a function with this code can run many times and be as new each time: it
            sets neither globals nor what it shares with the function that it was made in.
    """

    __slots__ = ("code", "is_of_script", "lasting", "names")

    def __init__(self, function: FunctionType) -> None:
        self.code = code = function.__code__
        found, namespace = names_in(code), function.__globals__
        self.is_of_script = namespace is vars(sys.modules["__main__"])
        is_free = self.is_of_script or (_WAYS_AROUND.isdisjoint(found.used) and not found.stored)
        is_other = namespace.get("__name__") in MAIN and not self.is_of_script
        shares = not found.rebound.keys().isdisjoint(code.co_freevars)
        self.lasting = is_free and not is_other and not shares
        self.names = (
            *(_read_by_script(namespace, found.used) if self.is_of_script else found.used),
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
        for name in self.names:
            value = namespace.get(name, _MISSING)
            if not self.is_of_script:
                found.append(value)
            elif isinstance(value, _CODE):
                found += [value, *_parts(value)]
            else:
                found.append(None)
        for more in (function.__kwdefaults__, function.__annotations__):
            if more:
                found += [_END, *more, *more.values()]
        return found


def _read_by_script(namespace: dict[str, Any], names: dict[str, None]) -> dict[str, None]:
    """Return *names* of ``__main__`` with those that the functions and classes among them read."""
    names, pending = dict(names), list(names)
    for name in pending:
        value = namespace.get(name)
        parts = vars(value).values() if isinstance(value, type) else [value]
        for part in parts:
            plain = _plain(part)
            if type(plain) is FunctionType and plain.__module__ in MAIN:
                read = names_in(plain.__code__).used
                pending += [each for each in read if each not in names]
                names.update(dict.fromkeys(read))
    return names


def is_stable(captured: list[Any], serializer: Serializer) -> bool:
    """Return whether nothing in there can change: it is plain, or travels by its name."""
    named = [
        each for each in captured[1:] if not (_is_plain(each) or each is _MISSING or each is _END)
    ]
    named = [each for each in named if not _is_of_script(each)]
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


def _parts(code: Any) -> Iterator[Any]:
    """Yield the parts of a function or class of ``__main__``."""
    if type(code) is FunctionType:
        yield from (code.__code__, code.__defaults__)
    elif isinstance(code, type) and code.__module__ in MAIN:
        for part in vars(code).values():
            yield part
            yield from _parts(part) if type(part) is FunctionType else ()
        for base in code.__bases__:
            yield from _parts(base)


def _plain(part: Any) -> Any:
    """Return the function in *part* of a class, if it is wrapped."""
    if isinstance(part, property):
        return part.fget
    return part.__func__ if isinstance(part, (classmethod, staticmethod)) else part


def _is_of_script(part: Any) -> bool:
    """Return whether *part* is code of ``__main__``, or belongs to a class that is."""
    plain = _plain(part)
    if isinstance(plain, _CODE):
        return plain.__module__ in MAIN
    return type(plain) in _OF_CLASSES


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
