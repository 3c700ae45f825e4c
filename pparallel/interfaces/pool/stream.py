"""The results of ``imap`` and ``imap_unordered``."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar, cast

from typing_extensions import override

from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.interfaces.pool.batch import Batch, Sink
from pparallel.interfaces.pool.progress import Meter
from pparallel.interfaces.pool.results import Attend
from pparallel.interfaces.pool.sources import source_of

R = TypeVar("R")

#: most items that ``imap`` takes ahead when tasks are quick
QUICK_LOOKAHEAD = 4096
_QUICK = 0.005  #: seconds; half a window used up within this: tasks are quick
_SLOW = 0.05
_GROWTH = 4
_MARKS = 8  #: marks in a window


class Work(NamedTuple):
    """What a stream needs to know of its call and its pool."""

    carry: Callable[[Batch, Sink], None]
    attend: Attend
    func: Callable[..., Any]
    lookahead: int
    chunksize: int
    meter: Meter | None = None


class Failure:
    """What stands in place of a value: a task's error, or one of the two below."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


_MARK = Failure()
_NOTHING = Failure()


class ResultStream(Iterator[R], Generic[R]):
    """Results as an iterator, whose :meth:`next` takes a time-out.

    A task's exception is raised at its place, and the iteration goes on after it. An exception
    of the iterable is raised after the results of the items before it, and ends the iteration.
    The iterable is advanced in the threads that call ``imap`` and ``next``, one at a time: it
    must not wait for a result of its own stream. A task that waits while another thread does so,
    and nothing else is to come, holds its worker meanwhile.
    """

    # To give a ready result costs no lock and no counting: it is popped from a deque. What has
    # been returned follows from what has arrived and what is left there; it is looked at where a
    # mark stands among the results, or nothing is left.

    def __init__(self, work: Work, iterable: Iterable[Any], *, ordered: bool) -> None:
        self._work = work
        self.meter = work.meter
        self._source = source_of(iterable)
        self._feeding = threading.Lock()
        self._ended = False
        self._filled_at = 0.0
        self._window = work.lookahead
        self._taken = 0
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._waiting = False
        self._early: dict[int, Sequence[Any]] | None = {} if ordered else None
        self._ready: deque[Any] = deque()
        self._pop = self._ready.popleft
        self._arrived = 0  # results that are ready or were returned
        self._marks = 0  # among the ready results
        self._unmarked = 0  # results since the last mark
        if self.meter is not None:
            self.meter.start()
            weakref.finalize(self, self.meter.close)  # nobody asks for the rest
        if work.lookahead:
            self._feed()

    @override
    def __next__(self) -> R:
        try:
            value = self._pop()
        except IndexError:
            value = _NOTHING
        return value if type(value) is not Failure else self._after(value, None)

    def next(self, timeout: float | None = None) -> R:
        """Return the next result, or raise what its task raised.

        Raises:
            TaskTimeoutError: it was not there within *timeout* seconds; it can be asked for again.
            ClosedError: the pool was joined or terminated before the iterable's end.
            StopIteration: there are no more.
        """
        return self._after(self._popped(), timeout)

    def put(self, first: int, values: Sequence[Any]) -> None:
        """Take the values, or failures, of tasks from place *first* on; under ``lock``."""
        early = self._early
        if early is None:
            self._arrive(values)
        elif first != self._arrived:
            early[first] = values
            return
        else:
            self._arrive(values)
            while early and (following := early.pop(self._arrived, None)) is not None:
                self._arrive(following)
        if self._waiting:
            self._wake()

    def metered(self, meter: Meter, count: int) -> None:
        """Tell *meter* of so many results, and when there are no more."""
        meter.advance(count)
        if self._ended and self._arrived == self._taken:
            meter.close()

    def _arrive(self, values: Sequence[Any]) -> None:
        count, spacing = len(values), self._window // _MARKS or 1
        self._unmarked += count
        if self._unmarked < spacing:
            self._ready.extend(values)
        else:
            for first in range(0, count, spacing):
                self._ready.extend(values[first : first + spacing])
                self._ready.append(_MARK)
                self._marks += 1
            self._unmarked = 0
        self._arrived += count

    def _wake(self) -> None:
        self._waiting = False
        self._changed.notify_all()

    def _popped(self) -> Any:
        try:
            return self._pop()
        except IndexError:
            return _NOTHING

    def _after(self, value: Any, timeout: float | None) -> R:
        """Return *value* or, if it is a mark or nothing, what comes after it."""
        deadline = None if timeout is None else monotonic() + timeout
        while value is _MARK or value is _NOTHING:
            if value is _MARK:
                with self.lock:
                    self._marks -= 1
            self._feed()
            if not self._ready:
                self._wait(deadline, timeout)
            value = self._popped()
        if type(value) is Failure:
            try:
                raise cast("BaseException", value.error)
            finally:
                del value, self  # the traceback would keep them
        return cast("R", value)

    def _wait(self, deadline: float | None, timeout: float | None) -> None:
        """Wait until there is something to do, or it is known that there is no more."""
        if self._ended and self._arrived == self._taken:
            if self._ready:
                return
            if self.meter is not None:
                self.meter.close()
            raise StopIteration
        left = None if deadline is None else deadline - monotonic()
        if left is not None and left <= 0:
            raise TaskTimeoutError("the next result", cast("float", timeout))
        if self._arrived == self._taken:
            self._stand_by(left)
        elif not self._ready:
            self._work.attend(self._stirs, self._block, left)

    def _stirs(self) -> bool:
        """Return whether a result is ready, or else none is to come that was asked for."""
        return bool(self._ready) or self._arrived == self._taken

    def _block(self, timeout: float | None) -> None:
        with self.lock:
            if not self._stirs():
                self._waiting = True
                self._changed.wait(timeout)

    def _stand_by(self, timeout: float | None) -> None:
        """Wait while another thread asks the iterable: the pool would have nothing to tell."""
        with self.lock:
            self._waiting = True  # first: that thread looks at it after it has let go
            nothing = self._arrived == self._taken and not self._ready
            if nothing and self._feeding.locked():
                self._changed.wait(timeout)

    def _ahead(self) -> int:
        return self._taken - self._arrived + len(self._ready) - self._marks

    def _feed(self) -> None:
        """Hand over more items once half of what may be ahead has been returned."""
        if self._ended or self._ahead() > self._window // 2 or not self._feeding.acquire(False):
            return
        try:
            room = max(1, self._window) - self._ahead()
            if room > 0 and not self._ended:
                self._adapt()
                self._hand_over(self._source.pull(room))
        finally:
            self._feeding.release()
            if self._waiting:
                with self.lock:
                    self._wake()

    def _adapt(self) -> None:
        now = monotonic()
        took, self._filled_at = now - self._filled_at, now
        if self._work.lookahead and took < _QUICK:
            most = max(QUICK_LOOKAHEAD, self._work.lookahead)
            self._window = min(_GROWTH * self._window, most)
        elif took > _SLOW:
            self._window = self._work.lookahead

    def _hand_over(self, items: Sequence[Any]) -> None:
        work, source = self._work, self._source
        if items:
            part = StreamPart(self, self._taken, len(items))
            self._taken += len(items)
            try:
                batch = Batch(work.func, items, chunksize=work.chunksize, continues=True)
                work.carry(batch, part)
            except ClosedError as error:
                self._taken -= len(items)
                self._end_with(error)
                return
        if source.error is not None:
            self._end_with(source.error)
        self._ended = source.ended

    def _end_with(self, error: BaseException) -> None:
        place, self._taken = self._taken, self._taken + 1
        self._ended = True
        with self.lock:
            self.put(place, (Failure(error),))
        if self.meter is not None:
            self.metered(self.meter, 0)


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
        stream, count = self._stream, len(values)
        with stream.lock:
            if self._ended:
                return
            if count == 1:
                self._reported[first] = 1
            else:
                self._reported[first : first + count] = b"\1" * count
            stream.put(self._offset + first, values)
        if stream.meter is not None:
            stream.metered(stream.meter, count)

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
        if self._stream.meter is not None:
            self._stream.meter.close()
