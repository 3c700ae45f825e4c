"""The queues of ``multiprocessing`` on those of pparallel, which need no lock."""

from __future__ import annotations

import os
import queue
from collections.abc import Sequence
from typing import Any, Self

from typing_extensions import Buffer, override

from pparallel.compat.torch_multiprocessing.backlog import Backlog
from pparallel.compat.torch_multiprocessing.encoding import refusing_graphs
from pparallel.compat.torch_multiprocessing.ownership import SERIALIZER
from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.patterns import queues
from pparallel.runtime.queues.ends import Deadline
from pparallel.runtime.shared_lock import SharedLock

_CAPACITY = 8192
_FIRST, _LONGEST = 0.0005, 0.01  #: seconds between two looks whether a queue has room


class SimpleQueue(queues.SimpleQueue):
    """A queue for the threads and processes of this machine.

    It can be an argument of processes and of tasks, and go through queues; who sends it keeps it
    until it has arrived. Nothing is lost with a process that is killed but the message that it was
    just receiving. Tensors in shared memory stay shared; what else arrives is the receiver's own.

    Args:
        ctx: a context of :mod:`multiprocessing`; not needed, since there are no locks to make.
    """

    def __init__(self, *, ctx: object = None) -> None:
        super().__init__(ctx=ctx, serializer=SERIALIZER, capacity=_CAPACITY)

    @override
    def message(self, obj: object) -> list[Buffer]:
        with refusing_graphs():
            return super().message(obj)


class Queue:
    """A :class:`SimpleQueue` with the methods of :class:`queue.Queue`.

    What cannot be pickled is an error to whoever puts it. Without *maxsize* nobody waits to put:
    what does not find room is delivered by a thread, for which the end of the process waits.

    Args:
        maxsize: how many messages may wait; 0 or less: any number.
        ctx: a context of :mod:`multiprocessing`; not needed, since there are no locks to make.
    """

    _lock: SharedLock | None

    def __init__(self, maxsize: int = 0, *, ctx: object = None) -> None:
        self._have(SimpleQueue(ctx=ctx), maxsize, SharedLock() if maxsize > 0 else None)

    def put(self, obj: object, block: bool = True, timeout: float | None = None) -> None:
        """Put *obj*, which may be changed as soon as this returns.

        Raises:
            queue.Full: there was no room, at once without *block*, else for *timeout* seconds.
            RuntimeError: a tensor in it is in the midst of a graph.
            SerializationError: it cannot be sent.
            ValueError: the queue is closed.
        """
        self._check_open()
        message = self._queue.message(obj)
        if (lock := self._lock) is not None:
            self._put_if_room(message, lock, timeout if block else 0.0)
            return
        backlog = self._own_backlog()
        with backlog.lock:
            if not backlog and self._is_taken(message):
                return
            backlog.append(message)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next object.

        Raises:
            queue.Empty: there was none, at once without *block*, else for *timeout* seconds.
            SerializationError: it cannot be rebuilt here; it is lost.
            ValueError: the queue is closed.
        """
        self._check_open()
        try:
            return self._queue.get(timeout if block else 0.0)
        except TaskTimeoutError:
            raise queue.Empty from None

    def put_nowait(self, obj: object) -> None:
        """Put *obj* if there is room; see :meth:`put`."""
        self.put(obj, False)

    def get_nowait(self) -> Any:
        """Return the next object if there is one; see :meth:`get`."""
        return self.get(False)

    def qsize(self) -> int:
        """Return how many messages wait to be got, as far as this process knows."""
        return self._queue.qsize() + len(self._own_backlog())

    def empty(self) -> bool:
        """Return whether there is nothing to get now."""
        return self._queue.empty()

    def full(self) -> bool:
        """Return whether as many messages wait as may."""
        return 0 < self._maxsize <= self.qsize()

    def close(self) -> None:
        """Let go of the queue in this process; what it has put is still delivered."""
        self._closed, self._lock = True, None
        self._own_backlog().finish(self._queue.close)

    def join_thread(self) -> None:
        """Wait until all that this process has put is in the queue; after :meth:`close`.

        Raises:
            ValueError: the queue is not closed.
        """
        if not self._closed:
            raise ValueError(f"{self!r} is open: close it before join_thread")
        self._own_backlog().join()

    def cancel_join_thread(self) -> None:
        """Have the end of this process not wait until all that it has put is in the queue."""
        self._own_backlog().leave_at_exit()

    def _have(self, simple: SimpleQueue, maxsize: int, lock: SharedLock | None) -> Self:
        self._queue, self._maxsize, self._lock = simple, maxsize, lock
        self._closed = False
        self._backlog = Backlog(simple.put_message)
        return self

    def _own_backlog(self) -> Backlog:
        if self._backlog.pid != os.getpid():  # its parent's, of which this is a fork
            self._backlog = Backlog(self._queue.put_message)
        return self._backlog

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the queue")

    def _is_taken(self, message: Sequence[Buffer]) -> bool:
        try:
            self._queue.put_message(message, 0.0)
        except TaskTimeoutError:
            return False
        return True

    def _put_if_room(
        self, message: Sequence[Buffer], lock: SharedLock, timeout: float | None
    ) -> None:
        deadline, pause = Deadline("putting an object into the queue", timeout), _FIRST
        try:
            while True:
                with lock.held("Queue.put"):
                    if self._queue.qsize() < self._maxsize:
                        self._queue.put_message(message, timeout)
                        return
                self._queue.ends().wait(0, deadline, pause)
                pause = min(2 * pause, _LONGEST)
        except TaskTimeoutError:
            raise queue.Full from None

    @override
    def __reduce__(self) -> Any:
        self._check_open()
        return _received, (self._queue, self._maxsize, self._lock)


def _received(simple: SimpleQueue, maxsize: int, lock: SharedLock | None) -> Queue:
    return Queue.__new__(Queue)._have(simple, maxsize, lock)
