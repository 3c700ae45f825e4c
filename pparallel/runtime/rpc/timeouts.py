"""The time-outs that users give."""

from __future__ import annotations

from typing import Any

from typing_extensions import override


class _Default:
    """The default time-out of calls."""

    @override
    def __repr__(self) -> str:
        return "transport.timeout"


DEFAULT: Any = _Default()  #: stands for the transport's ``timeout``


def seconds(timeout: float | None) -> float:
    """Return a user's time-out as the endpoint takes it: -1 for the default, 0 for no limit.

    Raises:
        ValueError: it is not more than 0.
        TypeError: it is no number.
    """
    if timeout is DEFAULT:
        return -1
    if timeout is None:
        return 0
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is {timeout!r}: give seconds, or None for no limit")
    if not timeout > 0:  # NaN is not either
        message = f"timeout is {timeout!r}: give seconds, more than 0, or None for no limit"
        raise ValueError(message)
    return timeout
