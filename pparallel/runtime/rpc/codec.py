"""How calls, results and errors become messages, and messages become these again.

A message is a head and frames. The head is a list of plain items, pickled, or written by a
serializer that takes data alone; what only the serializer can write travels in the frames beside
it. A call with plain arguments of a function that both ends find by its name has no frames.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import FunctionType
from typing import Any, NamedTuple

from typing_extensions import Buffer

from pparallel.errors import DirectoryError, SerializationError
from pparallel.interfaces.pool import name_of
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Frames
from pparallel.runtime import remote_errors
from pparallel.runtime.plain import PLAIN
from pparallel.runtime.rpc.script_functions import MAIN, ReceivedFunctions, SentFunctions, State

logger = logging.getLogger(__name__)

CALL, SERVICE, RESULT, ACK, CANCEL = range(5)  #: kinds of items

#: Places in an item. In all: the kind, an id (of ACK: those of calls whose results need not be kept
#: any more), and at the end how many frames it has.
KIND, ID, COUNT = 0, 1, -1
#: of a CALL: the calling thread, seconds left or 0, flags, the reference that is to keep the result
#: or None, the call if it is small and plain
THREAD, LIMIT, FLAGS, REF_ID, DATA = range(2, 7)
#: of a RESULT: status, value if it is small and plain, how many frames are of the value if not
STATUS, VALUE = 2, 3
#: of a SERVICE: key, body if it is plain, how many frames are of the body if not
KEY = 2

IDEMPOTENT, REGISTERED, IS_PLAIN = 1, 2, 4  #: flags of a call
OK, PICKLED, OBJECT, FAILED, NOT_REGISTERED = range(5)  #: how a call has ended
SUCCESS = frozenset({OK, PICKLED, OBJECT})

#: the last byte of a head: a message with calls, of results and cancellations, or of the runtime's
#: own, and an exchange
CALLS, RESULTS, SERVICES, EXCHANGE = b"crsx"

SMALL = 4096  #: bytes up to which plain data travels in the head


_HINT = "; register it where it is to run, and call it by name with registered_sync()"
_STAYS = "; remote() leaves a result where it is made, and returns a reference to it"
_LONG = frozenset({bytes, str})
_SHORT = frozenset({bool, complex, float, type(None)})
_WORD = 2**63
_NONE: tuple[Buffer, ...] = ()

Item = tuple[Any, ...]
Encoded = tuple[Item, Sequence[Buffer]]  #: an item with its frames
Data = tuple[Any, Any, Any, int]  #: of a call: the function's name, args or None, kwargs, bytes
#: flags, data, frames, and of a function of the script that is sent along its state
Call = tuple[int, Data | None, Sequence[Buffer], State | None]


class Registered(NamedTuple):
    """A function that is named instead of sent."""

    group: str
    key: str


class NotRegisteredHereError(DirectoryError):
    """Raised when a member no longer has the service that it was called for; nothing was run."""

    def __init__(self, group: str, key: str, member: str) -> None:
        super().__init__(f"{key!r} is not registered in Group [{group}] by member {member!r}")


def kind_of(frames: Frames) -> int:
    """Return the last byte of the head of a message or exchange; 0: it is neither."""
    first = frames[0] if frames else b""
    if type(first) is bytes:
        return first[-1] if first else 0
    head = memoryview(first)
    return head.cast("B")[-1] if head.nbytes else 0


def size_of(frames: Frames) -> int:
    """Return how many bytes *frames* hold."""
    total = 0
    for frame in frames:
        total += len(frame) if type(frame) is bytes else memoryview(frame).nbytes
    return total


class Codec:
    """Writes and reads what one member sends and receives.

    Attributes:
        trusts: whether functions are sent at all, and run when they come. If not, nothing is ever
            pickled or unpickled that the serializer does not write.
    """

    def __init__(self, serializer: Serializer, name: str) -> None:
        self.serializer, self._name = serializer, name
        self._names: dict[object, tuple[str, str]] = {}  # functions that travel by name
        self.sent, self.received = SentFunctions(), ReceivedFunctions()
        self.trusts = serializer.runs_code
        self._dumps: Callable[..., bytes] = self._write
        self._loads: Callable[[Any], Any] = self._read
        if self.trusts:
            import pickle  # a serializer of data alone has no need of it

            self._dumps, self._loads = pickle.dumps, pickle.loads

    # -- heads --------------------------------------------------------------------------------

    def head(self, items: Item | list[Any], kind: int) -> bytes:
        """Return the head of a message (a list, the first its watermark) or of an exchange."""
        return self._dumps(items, 5) + _KINDS[kind]

    def items(self, head: Buffer) -> Any:
        """Return what :meth:`head` was given.

        Raises:
            SerializationError: *head* is none.
        """
        return self._plain(head, "the head of a message")

    def _plain(self, data: Buffer, what: str) -> Any:
        try:
            return self._loads(data)
        except Exception as error:
            raise SerializationError(what, error, loading=True) from error

    def _write(self, items: object, _: int) -> bytes:
        found = self.serializer.dumps(items)
        return len(found).to_bytes(4, "little") + b"".join(
            memoryview(each).nbytes.to_bytes(8, "little") + bytes(each) for each in found
        )

    def _read(self, head: Buffer) -> Any:
        view, at, found = memoryview(head).cast("B"), 4, []
        for _ in range(int.from_bytes(view[:4], "little")):
            end = at + 8 + int.from_bytes(view[at : at + 8], "little")
            if not at + 8 <= end < len(view):
                raise ValueError("it is cut short")
            found.append(view[at + 8 : end])
            at = end
        return self.serializer.loads(found)

    # -- calls --------------------------------------------------------------------------------

    def call(
        self,
        what: Callable[..., Any] | Registered,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        to: str = "",
    ) -> Call:
        """Return a call of member *to*: its flags, and its data for the head, or as frames.

        The last part is the state of a function of the script that is sent along, else None.

        Raises:
            SerializationError: it cannot be sent.
        """
        flags, name, state = 0, None, None
        if type(what) is Registered:
            flags, name = REGISTERED, tuple(what)
        elif self.trusts and (name := self.name(what)) is None:
            state = self.sent.state(what)  # as it is before it is written
            if state is not None and self.sent.has(to, what, state):
                name, state = ("__main__", what.__qualname__), None  # type: ignore[union-attr]
        if name is not None and self.trusts and are_plain((), kwargs):
            flags |= IS_PLAIN
            kwargs = dict(kwargs) if kwargs else None  # the caller may change its own
            if not are_plain(args, None):
                return flags, (name, None, kwargs, 0), self._args(args), None
            size = _length(args, kwargs)
            if size <= SMALL:
                return flags, (name, args, kwargs, size), _NONE, None
            return flags, None, (self._dumps((name, args, kwargs), 5),), None
        if not flags and not callable(what):
            message = (
                f"{what!r} is no function: give the function itself and its arguments, as in"
                " rpc_sync(to, func, args), or the name of a registered one to registered_sync()"
            )
            raise TypeError(message)
        # A name travels as data: with a serializer that sends nothing else, it is what is called.
        named: Any = tuple(what) if flags else what  # type: ignore[arg-type]
        try:
            return flags, None, self.serializer.dumps((named, args, dict(kwargs or {}))), state
        except SerializationError as error:
            title = name_of(what) if callable(what) else str(what)
            is_function = (error.path or "").startswith("[0]")
            places = {"[1]": "args", "[0]": title, "[2]": "kwargs"}
            error.locate(places, _HINT if is_function else "")
            raise

    def _args(self, args: Sequence[Any]) -> Sequence[Buffer]:
        try:
            return self.serializer.dumps(tuple(args))
        except SerializationError as error:
            error.locate({"": "args"})
            raise

    def read_call(
        self, flags: int, data: Data | None, frames: Frames, sender: str = ""
    ) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        """Return the function, or the name of a registered one, and its arguments."""
        if flags & IS_PLAIN:
            if not self.trusts:
                raise SerializationError("a function", "none is taken from anybody", loading=True)
            if data is None:
                name, args, kwargs = self._plain(frames[0], "a call")
            else:
                name, args, kwargs, _ = data
            if args is None:
                args = self.serializer.loads(frames)
            what = Registered(*name) if flags & REGISTERED else self.function(name, sender)
            return what, args, kwargs or {}
        what, args, kwargs = self.serializer.loads(frames)
        if flags & REGISTERED:
            what = Registered(*what)
        elif not callable(what):
            kind = f"an object of type {type(what).__name__}"
            problem = f"{kind} is neither a function nor the name of a service"
            raise TypeError(problem)
        self.received.keep(sender, what)
        return what, args, kwargs

    def name(self, what: object) -> tuple[str, str] | None:
        """Return the module and name by which a function travels to any member, if it does."""
        if type(what) is not FunctionType:
            return None
        name = self._names.get(what)
        if name is not None:
            module = sys.modules.get(name[0])
            # As pickle does: what a name stands for may have changed.
            if module is not None and module.__dict__.get(name[1]) is what:
                return name
        module_name, name_there = what.__module__, what.__qualname__
        if module_name is None or module_name in MAIN or not name_there.isidentifier():
            return None
        if not travels_by_name(what, self.serializer):
            return None
        found = self._names[what] = str(module_name), str(name_there)
        return found

    def function(self, name: tuple[str, str], sender: str = "") -> Callable[..., Any]:
        """Return the function of that name.

        Raises:
            SerializationError: there is none here.
        """
        if name[0] in MAIN:
            kept = self.received.get(sender, name[1])
            if kept is None:
                what, why = f"function {'.'.join(name)}", "no earlier call brought it along"
                raise SerializationError(what, why, loading=True)
            return kept  # type: ignore[no-any-return] # it came as a function
        module = sys.modules.get(name[0])
        found = None if module is None else module.__dict__.get(name[1])
        if found is None:
            what = f"function {'.'.join(name)}"
            try:
                module = importlib.import_module(name[0])
            except ImportError as error:
                raise SerializationError(what, error, loading=True) from error
            found = module.__dict__.get(name[1])
            if not callable(found):
                raise SerializationError(what, "there is none of that name", loading=True)
        return found  # type: ignore[no-any-return] # it travels by name, and so is a function

    # -- services -----------------------------------------------------------------------------

    def service(self, number: int, key: str, body: object, buffers: Sequence[Buffer]) -> Encoded:
        """Return what is asked of a service.

        Raises:
            SerializationError: the body cannot be sent.
        """
        if is_plain(body):
            return (SERVICE, number, key, body, 0, len(buffers)), buffers
        try:
            frames = self.serializer.dumps(body)
        except SerializationError as error:
            error.locate({"": key})
            raise
        count = len(frames)
        return (SERVICE, number, key, None, count, count + len(buffers)), [*frames, *buffers]

    # -- results ------------------------------------------------------------------------------

    def result(self, number: int, value: object, buffers: Sequence[Buffer] = ()) -> Encoded:
        """Return the result of a call or service.

        Raises:
            SerializationError: it cannot be sent.
        """
        kind = type(value)
        if not buffers:
            if kind in _SHORT or (kind in _LONG and len(value) <= SMALL):  # type: ignore[arg-type]
                return (RESULT, number, OK, value, 0, 0), _NONE
            if kind is int and -_WORD < value < _WORD:  # type: ignore[operator]
                return (RESULT, number, OK, value, 0, 0), _NONE
            if kind in PLAIN and self.trusts:
                data = self._dumps(value, 5)
                if len(data) > SMALL:
                    return (RESULT, number, PICKLED, None, 1, 1), (data,)
                return (RESULT, number, OK, value, 0, 0), _NONE
        if is_plain(value):
            return (RESULT, number, OK, value, 0, len(buffers)), buffers
        try:
            frames = self.serializer.dumps(value)
        except SerializationError as error:
            error.locate({"": "result"}, _STAYS)
            raise
        count = len(frames)
        return (RESULT, number, OBJECT, None, count, count + len(buffers)), [*frames, *buffers]

    def failed(self, number: int, error: BaseException) -> Encoded:
        """Return the result that says that a call has failed with *error*; never raises."""
        try:
            frames = self.serializer.dumps(tuple(remote_errors.pack(error, self.serializer)))
            return (RESULT, number, FAILED, None, len(frames), len(frames)), frames
        except Exception:
            logger.exception("%s cannot send the error of a call: %r", self._name, error)
            why = f"the error of a call could not be sent; the log of {self._name} has it"
            return (RESULT, number, FAILED, why, 0, 0), _NONE

    def read_result(self, item: Item, frames: Frames) -> tuple[Any, Sequence[Buffer]]:
        """Return what a result that is not :data:`FAILED` brings: a value, and raw buffers."""
        _, _, status, value, count, _ = item
        if status == PICKLED:
            return self._plain(frames[0], "a result"), _NONE
        if status == OBJECT:
            return self.serializer.loads(frames[:count]), frames[count:]
        return value, frames

    def error(self, item: Item, frames: Frames, sender: str) -> BaseException:
        """Return the error that a result brings."""
        if item[VALUE] is not None:
            envelope: Any = remote_errors.Envelope("RuntimeError", item[VALUE], "", None, None)
        else:
            envelope = self.serializer.loads(frames)
        return remote_errors.unpack(envelope, sender, self.serializer)


_KINDS = {each: bytes((each,)) for each in b"crsx"}


def is_plain(body: object) -> bool:
    """Return whether *body* is plain data, or a tuple of it, that travels in the head."""
    return type(body) in PLAIN or (type(body) is tuple and PLAIN.issuperset(map(type, body)))


def are_plain(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """Return whether arguments are plain data."""
    if type(args) is not tuple or not PLAIN.issuperset(map(type, args)):
        return False
    if not kwargs:
        return True
    return type(kwargs) is dict and PLAIN.issuperset(map(type, chain(kwargs, kwargs.values())))


def _length(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> int:
    """Return the length of the text and bytes in plain arguments."""
    size = 0
    if not _LONG.isdisjoint(map(type, args)):
        size = sum(len(each) for each in args if type(each) in _LONG)
    if kwargs:
        size += sum(len(each) for each in kwargs.values() if type(each) in _LONG)
    return size


def travels_by_name(what: Any, serializer: Serializer) -> bool:
    """Return whether *serializer* sends a function by its name."""
    module = sys.modules.get(what.__module__)
    if module is None or module.__dict__.get(what.__qualname__) is not what:
        return False
    try:
        frames = serializer.dumps(what)
    except Exception:  # noqa: BLE001 - a serializer of others may refuse in any way
        return False
    import pickle  # a serializer that sends functions has it loaded

    return len(frames) == 1 and bytes(memoryview(frames[0])) == pickle.dumps(what, 5)
