"""The future of calls and of a pool's tasks."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from traceback import format_exception
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

from typing_extensions import override

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

# As :mod:`concurrent.futures` writes its states. A cancelled future skips the state CANCELLED, in
# which those who wait do not know of it yet.
PENDING, RUNNING, FINISHED = "PENDING", "RUNNING", "FINISHED"
CANCELLED = "CANCELLED_AND_NOTIFIED"
_ENDED = (FINISHED, CANCELLED)

_NO_CALLBACKS = cast("list[Any]", ())


class _OwnCondition(threading.Condition):
    """The condition of one future; ``with mutex`` is safe from Ctrl-C, which its methods are not.

    :func:`concurrent.futures.wait` and ``as_completed`` take the locks of all their futures in the
    order of ``id()``: a lock that several futures share would be taken out of order.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        super().__init__(self.mutex)


class _Condition:
    """Makes the condition of a future when :mod:`concurrent.futures` first asks for it."""

    def __get__(self, future: LeanFuture[Any], owner: type) -> threading.Condition:
        if future._own is None:
            own, waiters = _OwnCondition(), list[Any]()
            with future._lock:
                if future._own is None:
                    future._waiters, future._own = waiters, own
        return cast("threading.Condition", future._own)


class LeanFuture(Future[T], Generic[T]):
    """A future that takes 90 bytes and a microsecond as long as nobody waits for it.

    It ends once; :meth:`set_result` and :meth:`set_exception` raise ``InvalidStateError`` after
    that. A callback that raises is logged; ``KeyboardInterrupt`` in the main thread is raised again
    after the other callbacks. It can be awaited in a coroutine.
    """

    #: Guards states and callbacks of all futures, within the lock of a condition where there is
    #: one. Nothing else is called while it is held, and no object made: no finalizer runs then.
    _lock: ClassVar[Any] = threading.RLock()

    # Future sets all of these in each. A test compares the attributes.
    _condition = _Condition()
    _own: _OwnCondition | None = None
    _exception: BaseException | None = None
    _has_failed = False  # whether the result is an error that is to be read yet
    _waiters = cast("list[Any]", ())  # a list from when there is a condition

    def __init__(self) -> None:
        # Those that all get in the end: CPython keeps no room for others, and would make a dict.
        self._state = PENDING
        self._result: T | None = None
        self._done_callbacks = _NO_CALLBACKS  # a list when there are any

    @override
    def cancel(self) -> bool:
        return self._end(CANCELLED, before=(PENDING,)) or self.cancelled()

    @override
    def cancelled(self) -> bool:
        return self._state == CANCELLED

    @override
    def running(self) -> bool:
        return self._state == RUNNING

    @override
    def done(self) -> bool:
        return self._state in _ENDED

    @override
    def result(self, timeout: float | None = None) -> T:
        error = None
        try:
            if self._state != FINISHED or self._exception is not None:
                error = self.exception(timeout)
            if error is not None:
                raise error
            return self._result  # type: ignore[return-value] # None is a T if it is the result
        finally:
            error = None
            del self  # the raised exception's traceback would keep this frame, and so the result

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not (self.done() or self._wait(timeout)):
            raise TimeoutError
        if self._state == CANCELLED:
            raise CancelledError
        return self._exception

    def get(self, timeout: float | None = None) -> T:
        """Return the result as :meth:`result` does, under the name of ``AsyncResult``."""
        return self.result(timeout)

    def ready(self) -> bool:
        """Return whether it has ended, in whatever way."""
        return self.done()

    def successful(self) -> bool:
        """Return whether it has ended with a result.

        Raises:
            ValueError: it has not ended.
        """
        if not self.done():
            raise ValueError(f"{self!r} is not ready: it has not ended")
        return self._state == FINISHED and self.exception() is None

    @override
    def set_result(self, result: T) -> None:
        if not self._end(FINISHED, result):
            raise InvalidStateError(f"{self._state}: {object.__repr__(self)}")

    @override
    def set_exception(self, exception: BaseException | None) -> None:
        if not self._end(FINISHED, None, exception):
            raise InvalidStateError(f"{self._state}: {object.__repr__(self)}")

    @override
    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        self.when_done(fn)

    def when_done(self, fn: Callable[[Future[T]], object]) -> None:
        """Have *fn* called where the future ends, at once if it has: it must not block.

        :meth:`add_done_callback` is for functions of users, and may have them called elsewhere.
        """
        if not self._add(fn, len(self._done_callbacks)):
            self._call((fn,))

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def _add(self, callback: Callable[[Future[T]], object], at: int) -> bool:
        """Add a callback; return False if the future has ended."""
        first = [callback]
        with self._lock:
            if self.done():
                return False
            if self._done_callbacks:
                self._done_callbacks.insert(at, callback)
            else:
                self._done_callbacks = first
        return True

    def _wait(self, timeout: float | None) -> bool:
        """Wait until the future has ended, at most *timeout* seconds; return whether it has."""
        alarm = SimpleQueue[object]()
        wake = alarm.put
        if self._add(wake, 0):  # before the callbacks of users, which may take long
            if timeout is not None:  # not less than 0, which NaN becomes too
                timeout = max(0, min(timeout, threading.TIMEOUT_MAX))
            try:
                with suppress(Empty):
                    alarm.get(timeout=timeout)
            finally:
                with self._lock:
                    if wake in self._done_callbacks:
                        self._done_callbacks.remove(wake)
        return self.done()

    def _end(
        self,
        state: str,
        result: T | None = None,
        exception: BaseException | None = None,
        before: Sequence[str] = (PENDING, RUNNING),
    ) -> bool:
        """End, unless the state is none of *before*; return whether it was."""
        with self._lock:
            own = self._own
            if own is None:
                if self._state not in before:
                    return False
                if exception is not None:
                    self._exception = exception
                self._result, self._state = result, state
        if own is not None and not self._end_awaited(own, state, result, exception, before):
            return False
        if self._done_callbacks:
            self._invoke_callbacks()
        return True

    def _end_awaited(
        self,
        own: _OwnCondition,
        state: str,
        result: T | None,
        exception: BaseException | None,
        before: Sequence[str],
    ) -> bool:
        with own.mutex:
            with self._lock:
                if self._state not in before:
                    return False
                self._result, self._exception, self._state = result, exception, state
            for waiter in self._waiters:
                if state == CANCELLED:
                    waiter.add_cancelled(self)
                elif exception is not None or self._has_failed:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            own.notify_all()
        return True

    def _invoke_callbacks(self) -> None:
        with self._lock:
            callbacks, self._done_callbacks = self._done_callbacks, _NO_CALLBACKS
        self._call(callbacks)

    def _call(self, callbacks: Sequence[Callable[[Future[T]], object]]) -> None:
        interrupt: BaseException | None = None
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as error:
                logger.exception("A done-callback of %s failed", object.__repr__(self))
                if isinstance(error, KeyboardInterrupt):
                    interrupt = error
        if interrupt is not None and threading.current_thread() is threading.main_thread():
            raise interrupt


class Watcher(Protocol):
    """Calls what follows the collection of an object, in a thread of its own."""

    def watch(self, watched: object, action: Callable[[], object]) -> None:
        """Have *action*, which must not hold *watched*, called when that has been collected."""

    def unwatch(self, watched: object) -> None:
        """Have nothing called then."""


class TorchFuture(LeanFuture[T], Generic[T]):
    """A future with the methods of those of torch."""

    _watcher: Watcher | None = None  #: has an error logged that nobody asks for

    def wait(self, timeout: float | None = None) -> T:
        """Return the result as :meth:`result` does."""
        return self.result(timeout)

    def value(self) -> T:
        """Return the result, which is there."""
        return self.result(0)

    def then(self, callback: Callable[[Self], U]) -> TorchFuture[U]:
        """Return a future of what *callback* returns, which is called with this one at its end.

        Callbacks of calls run on a thread for callbacks. To cancel the returned future leaves this
        one as it is.
        """
        found: TorchFuture[U] = TorchFuture()
        found._watcher = self._watcher

        def act(done: Future[T]) -> None:
            try:
                settle(found, callback(self))
            except BaseException as error:  # noqa: BLE001 - goes to whoever asks
                fail(found, error)

        self.add_done_callback(act)
        return found

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        if error is not None:
            self._is_asked()
        return error

    @override
    def set_exception(self, exception: BaseException | None) -> None:
        text = "" if self._watcher is None else "".join(format_exception(exception))
        if not self._end_by(partial(log_unasked, "a future", text), None, exception):
            raise InvalidStateError(f"{self._state}: {object.__repr__(self)}")

    def _end_by(
        self, log: Callable[[], object], result: Any, exception: BaseException | None
    ) -> bool:
        """End by an error; *log* is called if this is collected before anybody has asked for it."""
        if (watcher := self._watcher) is not None:
            watcher.watch(self, log)  # before those who wait can ask
        if self._end(FINISHED, result, exception):
            return True
        self._is_asked()
        return False

    def _is_asked(self) -> None:
        if (watcher := self._watcher) is not None:
            watcher.unwatch(self)


def log_unasked(what: str, error: str) -> None:
    """Log an error that nobody has asked for, so that it does not end in silence."""
    logger.warning("The error of %s was never asked for:\n%s", what, error.rstrip())


def collect_all(futures: Iterable[Future[T]]) -> TorchFuture[list[Future[T]]]:
    """Return a future of the list of *futures*, which ends when all of these have.

    Raises:
        TypeError: one is no future of :mod:`concurrent.futures`.
    """
    every = _futures("collect_all", futures)
    found: TorchFuture[list[Future[T]]] = TorchFuture()
    left = iter(every[1:])  # one for each end but the last, taken in one step of the interpreter

    def ended(done: Future[T]) -> None:
        if next(left, None) is None:
            settle(found, every)

    for each in every:
        each.add_done_callback(ended)
    if not every:
        settle(found, every)
    return found


def wait_all(futures: Iterable[Future[T]], timeout: float | None = None) -> list[T]:
    """Return the results of *futures*, once all of these have ended.

    Args:
        futures: of calls, of pools, or others of :mod:`concurrent.futures`.
        timeout: seconds for all together; ``None`` for no limit.

    Raises:
        TimeoutError: not all have ended within *timeout* seconds.
        TypeError: one is no future of :mod:`concurrent.futures`.
        Exception: of the first in the list that has failed.
    """
    every = _futures("wait_all", futures)
    deadline = None if timeout is None else monotonic() + timeout
    for each in every:
        with suppress(CancelledError):
            each.exception(None if deadline is None else max(0.0, deadline - monotonic()))
    return [each.result() for each in every]


def _futures(name: str, futures: Iterable[Future[T]]) -> list[Future[T]]:
    every = list(futures)
    given: Iterable[object] = every
    for each in given:
        if not isinstance(each, Future):
            kind = f"{type(each).__module__}.{type(each).__qualname__}"
            message = (
                f"{name}() takes futures of calls, of pools and of concurrent.futures, and not"
                f" {kind}: torch.futures.{name}() takes those of torch; a reference has to_here()"
            )
            raise TypeError(message)
    return every


def when_done(future: Future[T], fn: Callable[[Future[T]], object]) -> None:
    """Have *fn* called where *future* ends, as :meth:`LeanFuture.when_done` does."""
    if isinstance(future, LeanFuture):
        future.when_done(fn)
    else:
        future.add_done_callback(fn)


def settle(future: Future[T], value: T) -> None:
    """Give *future* its result, unless it has ended meanwhile: a late reply is dropped."""
    try:  # a hot path, where suppress() would cost as much as all the rest
        future.set_result(value)
    except InvalidStateError:
        return


def fail(future: Future[T], error: BaseException) -> None:
    """Fail *future*, unless it has ended meanwhile."""
    with suppress(InvalidStateError):
        future.set_exception(error)


def ended_by(error: BaseException) -> BaseException:
    """Return what a function ended by: no iterator or future can raise ``StopIteration``."""
    if not isinstance(error, StopIteration):
        return error
    found = RuntimeError("task raised StopIteration")
    found.__cause__ = error
    return found


def _renew_lock() -> None:
    """In a forked child, forget that a thread of the parent held the lock."""
    LeanFuture._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
