"""A queue that any thread and process of this machine may put to and get from."""

from __future__ import annotations

import errno
import logging
import os
import select
from collections.abc import Sequence
from typing import Any, NoReturn

from typing_extensions import Buffer

from pparallel.errors import ClosedError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import lending
from pparallel.runtime.queues.ends import Deadline, Ends, Handles
from pparallel.runtime.queues.orphans import Orphans
from pparallel.runtime.queues.tickets import SIZE, head_of, ticket

logger = logging.getLogger(__name__)

_LOOK = 0.005  #: seconds between looks for memory that receivers have let go


class SharedQueue:
    """A first-in, first-out queue of objects.

    Messages of one thread arrive in the order they were put, each at one receiver. One that was
    put arrives even if its sender dies, and a receiver that dies takes at most the message along
    that it was just receiving. What arrives is the receiver's own.

    Args:
        serializer: turns objects into bytes.
        ends: what a process holds of a queue.
        copies: what arrives lies in memory of the receiver's own, not in the queue's.
    """

    def __init__(self, serializer: Serializer, ends: Ends, copies: bool = False) -> None:
        self._serializer = serializer
        self._ends: Ends | None = ends
        self._copies = copies

    def put(self, obj: object, timeout: float | None = None) -> None:
        """Put *obj*, which may be changed as soon as this returns.

        Waits while the queue is full.

        Args:
            obj: anything that the serializer takes.
            timeout: seconds; ``None`` for no limit.

        Raises:
            ClosedError: the queue is closed or was shut down.
            OSError: there is not as much shared memory as it needs, even with nothing else in it.
            SerializationError: it cannot be serialised.
            TaskTimeoutError: the queue was full for so long; nothing was put.
        """
        self.ends()
        self.put_message(self.message(obj), timeout)

    def message(self, obj: object) -> list[Buffer]:
        """Return *obj* as :meth:`put_message` takes it; valid while *obj* is unchanged.

        Raises:
            SerializationError: it cannot be serialised.
        """
        if not self._serializer.lends:
            return self._serializer.dumps(obj)
        with lending.noted() as lent:
            buffers = self._serializer.dumps(obj)
        return [lending.receipt_for(lent), *buffers] if lent else buffers

    def put_message(self, buffers: Sequence[Buffer], timeout: float | None = None) -> None:
        """Put an object that is bytes already; see :meth:`put`."""
        ends = self.ends()
        deadline = Deadline("putting an object into the queue", timeout)
        head = self._packed(ends, buffers, deadline)
        done = False
        try:
            if ends.ended:
                _refuse()
            done = _written(ends, head)
            while not done:
                self._wait_for_room(ends, head, deadline)
                done = _written(ends, head)
        finally:
            if not done:
                ends.parcels.drop(head)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next object, waiting for it if need be.

        Args:
            timeout: seconds; ``None`` for no limit.

        Raises:
            ClosedError: the queue is closed, or was shut down and is empty.
            SerializationError: the object cannot be rebuilt here; it is lost.
            TaskTimeoutError: there was none for so long.
        """
        deadline = None
        while True:
            ends = self.ends()
            ended = ends.ended  # before the look: what was put before it is found
            found = _read(ends)
            if found is not None:
                buffers = self._unpacked(ends, found)
                if buffers is not None:
                    return self._loaded(buffers)
            elif ended:
                _refuse()
            else:
                deadline = deadline or Deadline("getting an object from the queue", timeout)
                ends.wait(select.POLLIN, deadline)

    def empty(self) -> bool:
        """Return whether there is nothing to get now.

        Raises:
            ClosedError: the queue is closed.
        """
        poll = select.poll()
        poll.register(self.ends().tickets, select.POLLIN)
        return not poll.poll(0)

    def ended(self) -> bool:
        """Return whether the queue was shut down, so that no more is put.

        Raises:
            ClosedError: the queue is closed.
        """
        return self.ends().ended

    def qsize(self) -> int:
        """Return how many messages wait to be got.

        Raises:
            ClosedError: the queue is closed.
        """
        return self.ends().waiting()

    def shutdown(self) -> None:
        """Let nobody, in any process, put any more; safe to call again.

        What is in the queue can still be got. Whoever waits wakes with :class:`ClosedError`.

        Raises:
            ClosedError: the queue is closed.
        """
        self.ends().shut_down()

    def close(self) -> None:
        """Let go of the queue in this process, whose waiting threads wake; safe to call again.

        Other processes use it on; it ends with the last of them.
        """
        ends, self._ends = self._ends, None
        if ends is not None:
            ends.wake()

    def ends(self) -> Ends:
        """Return what this process holds of the queue.

        Raises:
            ClosedError: the queue is closed.
        """
        ends = self._ends
        if ends is None:
            raise ClosedError("the queue")
        return ends

    def _loaded(self, buffers: list[Buffer]) -> Any:
        if not lending.is_receipt(buffers[0]):
            return self._serializer.loads(buffers)
        receipt, *rest = buffers
        try:
            return self._serializer.loads(rest)
        finally:
            lending.give_back(receipt)

    def _handles(self) -> Handles:
        return self.ends().handles()

    def _packed(self, ends: Ends, buffers: Sequence[Buffer], deadline: Deadline) -> bytes:
        """Return the head of what is to be put, once there is memory for it."""
        orphans: Orphans | None = None
        while True:
            try:
                return ends.parcels.pack(buffers).head()
            except OSError as error:
                if error.errno != errno.ENOMEM or not ends.arena.usage().blocks:
                    raise
                why = error.strerror
            if orphans is None:
                orphans = Orphans()
                logger.warning("%s; put waits until receivers let go of what they got", why)
            orphans.free(ends)
            if ends.ended:
                _refuse()
            ends.wait(0, deadline, _LOOK)

    def _wait_for_room(self, ends: Ends, head: bytes, deadline: Deadline) -> None:
        # If this process dies meanwhile, nobody will find what it was about to put.
        ends.parcels.hold(head)
        try:
            ends.wait(select.POLLOUT, deadline)
            if ends.ended:
                _refuse()
        finally:
            ends.parcels.send(head)

    def _unpacked(self, ends: Ends, found: bytes) -> list[Buffer] | None:
        try:
            buffers = ends.parcels.unpack(head_of(found))
        except RuntimeError:
            logger.exception("a message was lost: its sender was stopped in the middle of put")
            return None
        return [bytearray(each) for each in buffers] if self._copies else buffers


def _read(ends: Ends) -> bytes | None:
    try:
        return os.read(ends.tickets, SIZE)
    except BlockingIOError:
        return None


def _written(ends: Ends, head: bytes) -> bool:
    try:
        os.write(ends.tickets, ticket(head))
    except BlockingIOError:
        return False
    return True


def _refuse() -> NoReturn:
    raise ClosedError("the queue", "was shut down")
