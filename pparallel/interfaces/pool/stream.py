"""The results of ``imap`` and ``imap_unordered``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar, cast

from typing_extensions import override

from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.interfaces.pool.batch import Batch, Sink
from pparallel.interfaces.pool.results import Attend

R = TypeVar("R")

#: most items that ``imap`` takes ahead when tasks are quick
QUICK_LOOKAHEAD = 4096
_QUICK = 0.005  #: seconds; half a window used up within this: tasks are quick
_SLOW = 0.05
_PULL = 0.001  #: seconds; ready results do not wait longer than this for a slow iterable


class Work(NamedTuple):
    """What a stream needs to know of its call and its pool."""

    carry: Callable[[Batch, Sink], None]
    attend: Attend
    func: Callable[..., Any]
    lookahead: int
    chunksize: int


class Failure(NamedTuple):
    """What stands in place of a value when there is none."""

    error: BaseException


_NOTHING = Failure(LookupError())


class ResultStream(Iterator[R], Generic[R]):
    """Results as an iterator, whose :meth:`next` takes a time-out.

    A task's exception is raised at its place, and the iteration goes on after it. An exception
    of the iterable is raised after the results of the items before it, and ends the iteration.
    The iterable is advanced in the threads that call ``imap`` and ``next``, one at a time: it
    must not wait for a result of its own stream.
    """

    def __init__(self, work: Work, iterable: Iterable[Any], *, ordered: bool) -> None:
        self._work = work
        self._source = iter(iterable)
        self._ended = False
        self._ordered = ordered
        self._feeding = threading.Lock()
        self._filled_at = 0.0
        self._window = work.lookahead
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._waiting = 0
        self._taken = 0
        self._returned = 0
        self._by_place: dict[int, Any] = {}
        self._by_arrival: deque[Any] = deque()
        if work.lookahead:
            self._feed()

    @override
    def __next__(self) -> R:
        return self.next()

    def next(self, timeout: float | None = None) -> R:
        """Return the next result, or raise what its task raised.

        Raises:
            TaskTimeoutError: it was not there within *timeout* seconds; it can be asked for again.
            ClosedError: the pool was joined or terminated before the iterable's end.
            StopIteration: there are no more.
        """
        if self._taken - self._returned <= self._window // 2:
            self._feed()
        value = self._take()
        if value is _NOTHING:
            value = self._wait(timeout)
        if isinstance(value, Failure):
            raise value.error
        return cast("R", value)

    def _wait(self, timeout: float | None) -> Any:
        deadline = None if timeout is None else monotonic() + timeout
        value = _NOTHING
        while value is _NOTHING:
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise TaskTimeoutError("the next result", cast("float", timeout))
            self._work.attend(self._is_ready, self._block, left)
            self._feed()
            value = self._take()
        return value

    def put(self, first: int, values: Sequence[Any]) -> None:
        """Take the values, or failures, of tasks from place *first* on; under ``lock``."""
        if not self._ordered:
            self._by_arrival.extend(values)
        elif len(values) == 1:
            self._by_place[first] = values[0]
        else:
            self._by_place.update(enumerate(values, first))
        if self._waiting:
            self._changed.notify_all()

    def _take(self) -> Any:
        with self.lock:
            if self._ordered:
                value = self._by_place.pop(self._returned, _NOTHING)
            else:
                value = self._by_arrival.popleft() if self._by_arrival else _NOTHING
            if value is not _NOTHING:
                self._returned += 1
            elif self._ended and self._returned == self._taken:
                raise StopIteration
        return value

    def _is_ready(self) -> bool:
        if self._ordered:
            return self._returned in self._by_place or self._all_returned()
        return bool(self._by_arrival) or self._all_returned()

    def _all_returned(self) -> bool:
        return self._ended and self._returned == self._taken

    def _block(self, timeout: float | None) -> None:
        with self.lock:
            self._waiting += 1
            try:
                self._changed.wait_for(self._is_ready, timeout)
            finally:
                self._waiting -= 1

    def _feed(self) -> None:
        """Hand over more items once half of what may be ahead has been returned."""
        if self._ended or self._taken - self._returned > self._window // 2:
            return
        with self._feeding:
            room = max(1, self._window) - (self._taken - self._returned)
            if self._ended or room <= 0:
                return
            self._adapt()
            items: list[Any] = []
            try:
                self._pull(items, room)
            except Exception as error:  # noqa: BLE001 - raised again at its place
                self._hand_over(items)
                self._end_with(error)
            except BaseException:
                self._hand_over(items)
                raise
            else:
                self._hand_over(items)

    def _adapt(self) -> None:
        now = monotonic()
        took, self._filled_at = now - self._filled_at, now
        if self._work.lookahead and took < _QUICK:
            self._window = min(2 * self._window, max(QUICK_LOOKAHEAD, self._work.lookahead))
        elif took > _SLOW:
            self._window = self._work.lookahead

    def _pull(self, items: list[Any], room: int) -> None:
        deadline = monotonic() + _PULL
        for item in self._source:
            items.append(item)
            if len(items) >= room or monotonic() > deadline:
                return
        self._ended = True

    def _hand_over(self, items: list[Any]) -> None:
        if not items:
            with self.lock:
                self._changed.notify_all()  # another thread may wait for what does not come
            return
        work = self._work
        part = StreamPart(self, self._taken, len(items))
        self._taken += len(items)
        try:
            batch = Batch(work.func, items, chunksize=work.chunksize, continues=True)
            work.carry(batch, part)
        except ClosedError as error:
            self._taken -= len(items)
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        place, self._taken = self._taken, self._taken + 1
        self._ended = True
        with self.lock:
            self.put(place, (Failure(error),))


class StreamPart(Sink):
    """Takes the results of one batch of a stream."""

    __slots__ = ("_ended", "_offset", "_reported", "_stream")

    piecewise = True

    def __init__(self, stream: ResultStream[Any], offset: int, size: int) -> None:
        self._stream = stream
        self._offset = offset
        self._reported = bytearray(size)
        self._ended = False

    @property
    @override
    def cancelled(self) -> bool:
        return self._ended

    @override
    def begin(self) -> bool:
        return not self._ended

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        with self._stream.lock:
            if not self._ended:
                for index in range(first, first + len(values)):
                    self._reported[index] = True
                self._stream.put(self._offset + first, values)

    @override
    def failed(self, index: int, error: BaseException) -> None:
        self.done(index, (Failure(error),))

    @override
    def abort(self, error: BaseException) -> None:
        with self._stream.lock:
            ended, self._ended = self._ended, True
            for index, reported in enumerate(self._reported):
                if not (ended or reported):
                    self._stream.put(self._offset + index, (Failure(error),))
