"""Queues between the threads and processes of one machine, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from typing_extensions import override

from pparallel.builder import build, load
from pparallel.interfaces.serializer import Serializer, SerializerConfig
from pparallel.runtime.queues import SharedQueue
from pparallel.runtime.queues.ends import Ends, Handles

CAPACITY = 4096


class SimpleQueue(SharedQueue):
    """A first-in, first-out queue that any thread and process of this machine may use.

    It can be sent to other processes: as an argument of a pool's task, of
    ``multiprocessing.Process``, of ``pparallel.launch``, and through another queue. The process
    that sends it keeps it until the receiver has it.

    Messages of one thread arrive in the order they were put, each at one receiver. One that was
    put arrives even if its sender dies, and a receiver that dies takes at most the message along
    that it was just receiving. What arrives is the receiver's own.

    Args:
        ctx: a context of ``multiprocessing``; not needed, since there are no locks to make.
        copy_tensor: large data arrives in memory of the receiver's own. By default it arrives in
            the queue's shared memory and is not copied again; it counts against the queue's memory
            while it is used.
        serializer: turns objects into bytes: a serializer, the config of one (or a mapping), or
            ``None`` for the default.
        capacity: about how many messages may wait; as a rule no more than 8,192 are allowed.
        memory: bytes of shared memory for large data that waits or is in use; ``None``: half of
            what this process may use.

    Raises:
        OSError: no descriptors are left, or there is no shared memory.
    """

    def __init__(
        self,
        *,
        ctx: object = None,
        copy_tensor: bool = False,
        serializer: Serializer | SerializerConfig | Mapping[str, Any] | None = None,
        capacity: int = CAPACITY,
        memory: int | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be 1 or more, not {capacity}")
        built = _serializer(serializer)
        super().__init__(built, Ends.create(capacity, memory), copy_tensor)

    def quick_put(self, obj: object, timeout: float | None = None) -> None:
        """Put *obj*; the same as :meth:`put`."""
        self.put(obj, timeout)

    def quick_get(self, timeout: float | None = None) -> Any:
        """Return the next object; the same as :meth:`get`."""
        return self.get(timeout)

    @override
    def __reduce__(self) -> Any:
        return _received, (type(self), self._handles(), self._serializer, self._copies)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SimpleP2PQueue(SimpleQueue):
    """A queue from one sender to one receiver; neither is held to it."""


def _received(
    kind: type[SimpleQueue], handles: Handles, serializer: Serializer, copies: bool
) -> SimpleQueue:
    queue = kind.__new__(kind)
    SharedQueue.__init__(queue, serializer, Ends.reopen(handles), copies)
    return queue


def _serializer(given: Serializer | SerializerConfig | Mapping[str, Any] | None) -> Serializer:
    if isinstance(given, Serializer):
        return given
    config = given if isinstance(given, SerializerConfig) else load(SerializerConfig, given or {})
    built: Serializer = build(config)
    return built
