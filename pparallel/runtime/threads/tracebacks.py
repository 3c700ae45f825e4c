"""What is kept of a task's failure."""

from __future__ import annotations

from types import TracebackType


def below(error: BaseException) -> TracebackType | None:
    """Return the traceback without the caller's own frame, which would keep the sink alive."""
    return error.__traceback__ and error.__traceback__.tb_next
