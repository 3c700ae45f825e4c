"""Where in its life a pool is."""

from __future__ import annotations

from enum import StrEnum

from pparallel.errors import ClosedError


class PoolState(StrEnum):
    """The states of a pool, in words that complete "the pool ..."."""

    NEW = "is not open yet: use it inside 'with'"
    OPEN = "is open"
    CLOSED = "is closed"
    JOINED = "was joined"
    TERMINATED = "was terminated"
    INHERITED = "belongs to the process that opened it, of which this one is a fork: build another"

    def opened(self, pool: object) -> PoolState:
        """Return the state of *pool* after it was opened.

        Raises:
            ClosedError: it was opened before.
        """
        if self is not PoolState.NEW:
            raise ClosedError(str(pool), "cannot be opened again: build another")
        return PoolState.OPEN

    def closed(self) -> PoolState:
        """Return the state after close."""
        return PoolState.CLOSED if self in (PoolState.NEW, PoolState.OPEN) else self

    def check_taking(self, pool: object, *, continues: bool) -> None:
        """Refuse a batch that *pool* may not take any more.

        Raises:
            ClosedError: it is not open, or closed and the batch continues no earlier call.
        """
        if self is not PoolState.OPEN and not (continues and self is PoolState.CLOSED):
            raise ClosedError(str(pool), self.value)

    def check_joinable(self, pool: object, *, from_task: bool = False) -> None:
        """Refuse to join *pool* while it takes calls, or in one of its own tasks.

        Raises:
            ValueError: it is open.
            RuntimeError: a task asks.
        """
        if self is PoolState.OPEN:
            message = f"{pool} takes calls still: close or terminate it before join"
            raise ValueError(message)
        if from_task:
            message = f"a task of {pool} cannot join it: it would wait for itself"
            raise RuntimeError(message)
