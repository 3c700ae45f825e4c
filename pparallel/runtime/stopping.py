"""How a rank is told to stop, where it cannot be ended by force."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from pparallel.errors import ClosedError

logger = logging.getLogger(__name__)

Callback = Callable[["StopSignal"], None]


class StopSignal:
    """Set once, when a rank is to end; what blocks for it subscribes, so that it wakes.

    Any thread may set it. Callbacks run in the thread that sets it, each once, and must not block;
    what they raise is logged, for one must not keep the others from waking.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # on a reentrant lock: signal handlers set it, too
        self._is_set = False
        self._reason: BaseException | None = None
        self._callbacks: dict[object, Callback] = {}

    @property
    def reason(self) -> BaseException | None:
        """Why it was set: what went wrong elsewhere, or None."""
        return self._reason

    def is_set(self) -> bool:
        """Return whether the rank is to end."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the rank is to end, at most *timeout* seconds; return whether it is."""
        with self._changed:
            return self._changed.wait_for(self.is_set, timeout)

    def set(self, reason: BaseException | None = None) -> None:
        """Tell the rank to end; the first call counts, with its reason."""
        with self._changed:
            if self._is_set:
                return
            self._reason, self._is_set = reason, True
            self._changed.notify_all()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            self._tell(callback)

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Have *callback* called when the signal is set, at once if it already is.

        Returns:
            A function that takes the callback back; safe to call again.
        """
        token = object()
        with self._changed:
            if not self._is_set:
                self._callbacks[token] = callback
                return lambda: self._forget(token)
        self._tell(callback)
        return lambda: None

    def _tell(self, callback: Callback) -> None:
        try:
            callback(self)
        except Exception:
            logger.exception("%r failed as it was told to stop", callback)

    def _forget(self, token: object) -> None:
        with self._changed:
            self._callbacks.pop(token, None)


_current: ContextVar[StopSignal | None] = ContextVar("pparallel_stop_signal", default=None)


def current() -> StopSignal | None:
    """Return the signal of the rank that this thread runs, None where there is none."""
    return _current.get()


def check() -> None:
    """Raise if the current rank is to end, for code that neither blocks nor calls others.

    Raises:
        ClosedError: it is told to stop.
    """
    signal = current()
    if signal is not None and signal.is_set():
        raise ClosedError("the job", "is ending", consequence=True)


@contextmanager
def telling(stop: Callable[[], object]) -> Iterator[None]:
    """Have *stop* called, in any thread, when the current rank is told to stop meanwhile."""
    signal = current()
    if signal is None:
        yield
        return

    def tell(_: StopSignal) -> None:
        stop()

    forget = signal.subscribe(tell)
    try:
        yield
    finally:
        forget()


def waking(stop: Callable[[BaseException], object]) -> AbstractContextManager[None]:
    """Have *stop* called with a :class:`ClosedError`, as by :func:`telling`, to end a wait."""
    why = "is over: the job ends"
    return telling(lambda: stop(ClosedError("the wait for others", why, consequence=True)))


def follow(stop: Callable[[BaseException | None], object]) -> Callable[[], None]:
    """Have *stop* called with the reason, in any thread, when the current rank is told to stop.

    Returns:
        A function that takes it back; safe to call again.
    """
    signal = current()
    if signal is None:
        return lambda: None

    def tell(told: StopSignal) -> None:
        stop(told.reason)

    return signal.subscribe(tell)


@contextmanager
def running_under(signal: StopSignal) -> Iterator[StopSignal]:
    """Make *signal* the current one inside."""
    token = _current.set(signal)
    try:
        yield signal
    finally:
        _current.reset(token)
