"""The time-outs that users give."""

from __future__ import annotations

from time import monotonic
from typing import Any

from typing_extensions import override

FOR_EVER = 1e9  #: seconds from which on a time-out is none


class _Default:
    """The default time-out of calls."""

    @override
    def __repr__(self) -> str:
        return "transport.timeout"


DEFAULT: Any = _Default()  #: stands for the transport's ``timeout``


def limit(timeout: float | None, default: float | None) -> float | None:
    """Return a user's time-out in seconds, *default* for :data:`DEFAULT`; ``None``: no limit.

    Raises:
        ValueError: it is not more than 0.
        TypeError: it is no number.
    """
    if timeout is DEFAULT:
        return default
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is {timeout!r}: give seconds, or None for no limit")
    if not timeout > 0:  # NaN is not either
        message = f"timeout is {timeout!r}: give seconds, more than 0, or None for no limit"
        raise ValueError(message)
    return timeout if timeout < FOR_EVER else None


def deadline_of(timeout: float | None) -> float | None:
    """Return the time, by ``time.monotonic``, at which *timeout* seconds are over."""
    return None if timeout is None else monotonic() + timeout


def left(deadline: float | None) -> float | None:
    """Return the seconds until a deadline, more than 0 even where it is over."""
    return None if deadline is None else max(deadline - monotonic(), 0.001)
