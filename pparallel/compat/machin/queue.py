"""``machin.parallel.queue``: queues between the threads and processes of one machine."""

from __future__ import annotations

import threading
from builtins import TimeoutError
from typing import Any, Self

from typing_extensions import override

from pparallel.patterns.queues import SimpleP2PQueue, SimpleQueue
from pparallel.runtime.queues import get_from_any

__all__ = ["MultiP2PQueue", "SimpleP2PQueue", "SimpleQueue", "TimeoutError"]


class MultiP2PQueue:
    """Several queues, each with one process at the other end: what is put is dealt in turn.

    Any thread may use it, and it can be sent to other processes as a :class:`SimpleQueue` can.

    Args:
        queue_num: how many queues.
        copy_tensor: as for :class:`SimpleQueue`.

    Attributes:
        queues: the queues.

    Raises:
        ValueError: *queue_num* is less than 1.
    """

    def __init__(self, queue_num: int, *, copy_tensor: bool = False) -> None:
        if queue_num < 1:
            message = f"queue_num must be 1 or more, not {queue_num}"
            raise ValueError(message)
        self._take([SimpleP2PQueue(copy_tensor=copy_tensor) for _ in range(queue_num)])

    def _take(self, queues: list[SimpleP2PQueue]) -> None:
        self.queues = queues
        self._lock = threading.Lock()
        self._put_turn = self._get_turn = 0

    def put(self, obj: object) -> None:
        """Put *obj* into the next queue, waiting while that is full.

        Raises:
            ClosedError: the queue is closed or was shut down.
            SerializationError: *obj* cannot be serialised.
        """
        with self._lock:
            turn, self._put_turn = self._put_turn, (self._put_turn + 1) % len(self.queues)
        self.queues[turn].put(obj)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next object of any queue; none of them is kept waiting by another.

        Args:
            timeout: seconds; ``None`` for no limit.

        Raises:
            ClosedError: a queue is closed, or all were shut down and are empty.
            TimeoutError: there was none for so long.
        """
        with self._lock:
            turn, self._get_turn = self._get_turn, (self._get_turn + 1) % len(self.queues)
        return get_from_any((*self.queues[turn:], *self.queues[:turn]), timeout)

    def quick_put(self, obj: object) -> None:
        """Put *obj*; the same as :meth:`put`."""
        self.put(obj)

    def quick_get(self, timeout: float | None = None) -> Any:
        """Return the next object; the same as :meth:`get`."""
        return self.get(timeout)

    def get_sub_queue(self, index: int) -> SimpleP2PQueue:
        """Return the queue of that number, for whoever is at its other end."""
        return self.queues[index]

    def empty(self) -> bool:
        """Return whether there is nothing to get now."""
        return all(each.empty() for each in self.queues)

    def shutdown(self) -> None:
        """Let nobody, in any process, put any more; safe to call again."""
        for each in self.queues:
            each.shutdown()

    def close(self) -> None:
        """Let go of the queues in this process; safe to call again."""
        for each in self.queues:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (type(self), self.queues)


def _received(kind: type[MultiP2PQueue], queues: list[SimpleP2PQueue]) -> MultiP2PQueue:
    made = kind.__new__(kind)
    made._take(queues)
    return made
