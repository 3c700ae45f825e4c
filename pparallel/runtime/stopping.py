"""The link of a rank to the launcher that runs it: the signal to stop, and objects sent back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial

from pparallel.errors import ClosedError

logger = logging.getLogger(__name__)

Callback = Callable[[BaseException | None], object]  #: called with the reason
Tell = Callable[[object], object]


class StopSignal:
    """Set once, when a rank is to end; what blocks for it subscribes, so that it wakes.

    Any thread may set it. Callbacks run in the thread that sets it, each once, and must not block;
    what they raise is logged, for one must not keep the others from waking.

    Attributes:
        reason: why it was set: what went wrong elsewhere, or None.
        tell: hands an object on to where the rank was launched; None: nobody hears it.
    """

    def __init__(self) -> None:
        self.reason: BaseException | None = None
        self.tell: Tell | None = None
        self._changed = threading.Condition()  # on a reentrant lock: signal handlers set it, too
        self._is_set = False
        self._callbacks: dict[object, Callback] = {}

    def is_set(self) -> bool:
        """Return whether the rank is to end."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the rank is to end, at most *timeout* seconds; return whether it is."""
        with self._changed:
            return self._changed.wait_for(self.is_set, timeout)

    def set(self, reason: BaseException | None = None) -> None:
        """Have the rank end; the first call counts, with its reason."""
        with self._changed:
            if self._is_set:
                return
            self.reason, self._is_set = reason, True
            self._changed.notify_all()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            self._call(callback)

    def subscribe(self, callback: Callback) -> Callable[[], object]:
        """Have *callback* called with the reason when the signal is set, at once if it already is.

        Returns:
            A function that takes the callback back; safe to call again.
        """
        token = object()
        with self._changed:
            if not self._is_set:
                self._callbacks[token] = callback
                return partial(self._callbacks.pop, token, None)
        self._call(callback)
        return lambda: None

    def _call(self, callback: Callback) -> None:
        try:
            callback(self.reason)
        except Exception:
            logger.exception("%r failed as its rank was to stop", callback)


_current: ContextVar[StopSignal | None] = ContextVar("pparallel_stop_signal", default=None)


def current() -> StopSignal | None:
    """Return the signal of the rank that this thread runs, None where there is none."""
    return _current.get()


def upstream() -> Tell | None:
    """Return what hands an object on to where this rank was launched, None if nobody hears it."""
    signal = current()
    return None if signal is None else signal.tell


def check() -> None:
    """Raise if the current rank is to end, for code that neither blocks nor calls others.

    Raises:
        ClosedError: it is to stop.
    """
    signal = current()
    if signal is not None and signal.is_set():
        raise ClosedError("the job", "is ending", consequence=True)


def follow(stop: Callback) -> Callable[[], object]:
    """Have *stop* called with the reason, in any thread, when the current rank is to stop.

    Returns:
        A function that takes it back; safe to call again.
    """
    signal = current()
    return (lambda: None) if signal is None else signal.subscribe(stop)


@contextmanager
def telling(stop: Callable[[], object]) -> Iterator[None]:
    """Have *stop* called, in any thread, when the current rank is to stop meanwhile."""
    forget = follow(lambda _: stop())
    try:
        yield
    finally:
        forget()


def waking(stop: Callable[[BaseException], object]) -> AbstractContextManager[None]:
    """Have *stop* called with a :class:`ClosedError`, as by :func:`telling`, to end a wait."""
    why = "is over: the job ends"
    return telling(lambda: stop(ClosedError("the wait for others", why, consequence=True)))


@contextmanager
def running_under(signal: StopSignal, tell: Tell | None = None) -> Iterator[StopSignal]:
    """Make *signal* the current one inside, and *tell* its way to where the rank was launched."""
    signal.tell = tell
    token = _current.set(signal)
    try:
        yield signal
    finally:
        _current.reset(token)
