"""What is kept of a task's failure."""

from __future__ import annotations

from pparallel.runtime.future import ended_by


def below(error: BaseException) -> BaseException:
    """Return *error* as that of a task, without the caller's own frame.

    That would keep the sink alive.
    """
    return ended_by(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
