"""A worker's main loop: take a lot, run its tasks, report."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.pool import Batch, Style
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import remote_errors
from pparallel.runtime.plain import PLAIN
from pparallel.runtime.pools import nesting
from pparallel.runtime.pools.board import STEP, Spot, word_of
from pparallel.runtime.pools.messages import (
    CALL,
    DONE,
    LOT,
    REPORT,
    Channel,
    Parcel,
    Parcels,
    Received,
)
from pparallel.runtime.pools.values import PARCELS, RANGE, head_and_files, unread, unsent
from pparallel.runtime.pools.waiting import Waiter
from pparallel.runtime.pools.worker import memory
from pparallel.runtime.pools.worker.reports import LATE, Part, Reports

Call = Callable[[Any], Any]

_IDLE_MS = 5000  #: after which warm memory is given back
_SWITCH = 0.0005  #: seconds after which a computing thread lets the reports' thread run


class Trimmed(Protocol):
    """Memory that need not be kept while nothing is done."""

    def trim(self) -> object:
        """Give free memory back."""


class Loop:
    """Runs the lots that come over *channel*.

    Args:
        channel: to the pool.
        parcels: what large data comes and goes in.
        serializer: the pool's.
        spot: where to write which task runs.
        context: passed first to each function.
        idle: called when there is nothing to do.
        arena: where results are put; ``None``: there is none.
        keeps: results go by reference and are kept until the pool has them.
    """

    def __init__(
        self,
        channel: Channel,
        parcels: Parcels,
        serializer: Serializer,
        spot: Spot,
        context: tuple[Any, ...],
        *,
        idle: Callable[[], object],
        arena: Trimmed | None,
        keeps: bool,
    ) -> None:
        self._idle = idle
        self._arena = arena
        self._channel = channel
        self._parcels = parcels
        self._serializer = serializer
        self._spot = spot
        self._context = context
        self._kept: list[Any] | None = [] if keeps else None
        self._functions: dict[int, Any] = {}
        self._reports = Reports(channel, spot)
        self._slowest = (0.0, 0)
        self._poll = select.poll()
        self._poll.register(channel.fileno, select.POLLIN)
        self._is_warm = False

    def run(self) -> None:
        """Run lots until the pool closes the channel."""
        sys.setswitchinterval(_SWITCH)
        waiter, receive = Waiter(), self._channel.receive
        try:
            while True:
                received = waiter.wait(receive, self._block)
                assert received is not None
                message, files = received
                kind = message[0]
                if kind == CALL:
                    self._run_call(message)
                elif kind == LOT:
                    self._run(message, files)
                elif self._kept is not None:
                    del self._kept[: message[1]]
                self._parcels.settle()
                self._is_warm = True
                del received, message  # it may hold large values
        except (EOFError, ConnectionError):
            return

    def _block(self) -> Received | None:
        self._idle()
        if self._is_warm and not self._poll.poll(_IDLE_MS):
            self._is_warm = False
            memory.give_back()
            if self._arena is not None:
                self._arena.trim()
        return self._channel.receive(0)

    def _run(self, message: tuple[Any, ...], files: list[int]) -> None:
        _, number, function, style, kind, content, functions, forget, together, timed, prompt = (
            message
        )
        for each in forget:
            self._functions.pop(each, None)
        self._functions.update(functions)
        items: Sequence[Any] = range(*content) if kind == RANGE else content
        loads = _Loader(self, content, files) if kind == PARCELS else None
        reports, words, spot = self._reports, self._spot.words, self._spot
        reports.begin(number, len(items), prompt=prompt)
        self._slowest = (0.0, 0)
        began = perf_counter()
        word, place, size = word_of(number), 0, len(items)
        call = self._caller(function, style)
        while place < size:
            count = min(together, size - place)
            if timed:  # before its place: the task before it may have begun long ago
                words[spot.since] = time.monotonic_ns()
            words[spot.at] = word + place * STEP + count - 1
            if words[spot.recalled] >= number:
                break
            if count > 1 and loads is None:
                place = self._run_together(call, items, place, count)
            else:
                self._run_one(call, items, place, loads)
                place += 1
        if timed:  # whoever looks knows nothing of lots
            words[spot.since] = 0
        if loads is not None:
            loads.drop_from(place)
        took = perf_counter() - began
        reports.end(took, self._slowest)

    def _run_call(self, message: tuple[Any, ...]) -> None:
        """Run a single call that came by itself."""
        _, number, function, args, head, timed = message
        words, spot = self._spot.words, self._spot
        if timed:
            words[spot.since] = time.monotonic_ns()
        words[spot.at] = word_of(number)
        if words[spot.recalled] >= number:
            if head is not None:
                self.drop(head, ())
            self._channel.send((REPORT, number, 0, [], False, None, (0.0, 0.0, 0)))
            return
        began = perf_counter()
        values: list[Any] = []
        try:
            if head is not None:
                args = self.load(head, ())
            values.append(self._function(function)(*self._context, *args))
            del args  # an argument's last reference goes with the task
        except BaseException as error:  # noqa: BLE001 - reported to the task's caller
            self._reports.begin(number, 1)
            self._fail(error)
        else:
            if self._tell(number, values, began):
                return
        took = perf_counter() - began
        self._reports.end(took, (took, 0))

    def _tell(self, number: int, values: list[Any], began: float) -> bool:
        """Report the value of a single call by itself, unless there is more to be told."""
        value, head = None, None
        if type(values[0]) in PLAIN:
            value = values[0]
        else:
            parcel = self._packed(values)
            if isinstance(parcel, BaseException):
                self._reports.begin(number, 1)
                self._fail(parcel)
                return False
            head = parcel.head()
            if parcel.fds or self._kept:
                self._reports.begin(number, 1)
                self._reports.add_parcel(head, list(parcel.fds))
                return False
        self._channel.send((DONE, number, value, head, perf_counter() - began))
        return True

    def _run_together(self, call: Call, items: Sequence[Any], place: int, count: int) -> int:
        """Run tasks at C speed; return the place after the last one that ran.

        Nobody can tell which of them runs: if the process dies, all that were started together
        and not reported yet are lost.
        """
        reports = self._reports
        began = perf_counter()
        part = Part(list(items[place : place + count]), [], place)
        values = part.values
        error: BaseException | None = None
        try:
            reports.run_together(call, part)
        except BaseException as raised:  # noqa: BLE001 - reported to the task's caller
            error = raised
        else:
            if len(values) < len(part.items):
                error = StopIteration()  # a task that raises it ends the iteration over all
        took = perf_counter() - began
        if set(map(type, values)) <= PLAIN:
            reports.entries += values
        else:
            values.reverse()
            while values:
                self._add(values)
        if error is not None:
            self._fail(error)
        place = len(reports.entries)
        if took > max(LATE, self._slowest[0]):  # it was cut short behind the task that took it
            self._slowest = (took, place - 1)
        return place

    def _run_one(self, call: Call, items: Sequence[Any], place: int, loads: _Loader | None) -> None:
        began = perf_counter()
        values: list[Any] = []
        try:
            if loads is None:
                values.append(call(items[place]))
            else:
                item = loads.take(place)
                try:
                    values.append(call(item))
                finally:
                    del item  # the argument's last reference goes with the task
        except BaseException as error:  # noqa: BLE001 - reported to the task's caller
            self._fail(error)
        else:
            self._add(values)
        took = perf_counter() - began
        if took > self._slowest[0]:
            self._slowest = (took, place)

    def _add(self, values: list[Any]) -> None:
        """Move the last of *values* into the report; nothing here refers to it any more then."""
        if type(values[-1]) in PLAIN:
            self._reports.entries.append(values.pop())
            return
        parcel = self._packed(values)
        if isinstance(parcel, BaseException):
            self._fail(parcel)
        else:
            self._reports.add_parcel(parcel.head(), list(parcel.fds))

    def _packed(self, values: list[Any]) -> Parcel | BaseException:
        """Move the last of *values* into a parcel, or return why that cannot be."""
        size = len(values)
        kept = self._kept
        try:
            parcel = self._parcels.pack(self._serializer.dumps(values[-1]), move=True)
            if kept is not None:
                kept.append(values[-1])
            del values[-1]
            parcel.seal()
        except BaseException as error:  # noqa: BLE001 - the user's objects may raise anything
            del values[size - 1 :]
            if isinstance(error, SerializationError):
                error.locate({"": "result"})
            return unsent("the result", error)
        return parcel

    def _fail(self, error: BaseException) -> None:
        error.__traceback__ = _below(error.__traceback__)
        envelope = remote_errors.pack(error, self._serializer, exits=True)
        error.__traceback__ = None  # its frames hold the task's arguments
        self._reports.fail(tuple(envelope))

    def _caller(self, function: int, style: Style) -> Call:
        """Return what runs one item."""
        if style == "call":
            return self._call_each
        bound: list[Call] = []

        def call(item: Any) -> Any:
            if not bound:
                bound.append(self._bound(self._function(function), style))
            return bound[0](item)

        found = self._functions[function]
        return call if isinstance(found, list) else self._bound(found, style)

    def _bound(self, function: Any, style: Style) -> Call:
        return Batch(function, (), style).bound(*self._context)

    def _call_each(self, item: tuple[Any, ...]) -> Any:
        if len(item) == 2:
            return self._function(item[0])(*self._context, *item[1])
        number, args, kwargs = item
        return self._function(number)(*self._context, *args, **kwargs)

    def _function(self, number: int) -> Any:
        found = self._functions[number]
        if isinstance(found, list):  # its bytes: a function that cannot be loaded fails its tasks
            found = self._functions[number] = self._loaded("the function", found)
        return found

    def load(self, head: bytes, files: Sequence[int]) -> Any:
        """Return the item that travelled in a parcel."""
        return self._loaded("an argument", self._parcels.unpack(head, files))

    def _loaded(self, what: str, buffers: Sequence[Buffer]) -> Any:
        try:
            with nesting.LOADING:
                return self._serializer.loads(buffers)
        except BaseException as error:  # noqa: BLE001 - the user's hooks may raise anything
            refused = unread(what, error)
            raise refused from refused.__cause__

    def drop(self, head: bytes, files: Sequence[int]) -> None:
        """Release a parcel whose item will not be run."""
        self._parcels.drop(head, files)


class _Loader:
    """The items of a lot that travelled in parcels, each loaded when its task runs."""

    def __init__(self, loop: Loop, content: list[Any], files: list[int]) -> None:
        self._loop = loop
        self._content = content
        self._files = files

    def take(self, place: int) -> Any:
        return self._loop.load(*self._next(place))

    def drop_from(self, place: int) -> None:
        for each in range(place, len(self._content)):
            self._loop.drop(*self._next(each))

    def _next(self, place: int) -> tuple[bytes, list[int]]:
        head, count = head_and_files(self._content[place])
        self._content[place] = None
        files, self._files = self._files[:count], self._files[count:]
        return head, files


def _below(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of *traceback* that is the task's own, or all if there is none."""
    inner = traceback
    while inner is not None and inner.tb_frame.f_globals.get("__name__") == __name__:
        inner = inner.tb_next
    return inner or traceback
