"""The operations on objects, which travel as tensors of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pparallel.errors import SerializationError
from pparallel.interfaces.collective.algorithms import Operation
from pparallel.interfaces.collective.messages import wrong_count
from pparallel.interfaces.collective.tensors import TensorForms

if TYPE_CHECKING:
    from torch import Tensor

_FAILED = -1  # length that stands for an object which could not be serialised


class ObjectForms(TensorForms):
    """Operations on objects; they return what the others sent, and take no ``async_op``."""

    def broadcast_object(self, obj: Any = None, src: int = 0) -> Any:
        """Return the object of *src* in all members; elsewhere *obj* is not used."""
        root = self._position(src)
        if self.rank == src:
            parcel = _Parcel(self, obj)
            self._carry(lambda each: each.broadcast(parcel.length, root))
            parcel.raise_for_failure()
            self._carry(lambda each: each.broadcast(parcel.data, root))
            return obj
        lengths = _no_lengths(1)
        self._carry(lambda each: each.broadcast(lengths[0], root))
        _refuse_failures([src], lengths)
        data = _room_for(lengths)
        self._carry(lambda each: each.broadcast(data[0], root))
        return _unpacked(self, [src], lengths, data)[0]

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Return every member's object, by position in the group."""
        parcel = _Parcel(self, obj)
        lengths = _no_lengths(self.size())
        self._carry(lambda each: each.all_gather(lengths, parcel.length))
        parcel.raise_for_failure()
        _refuse_failures(self.ranks, lengths)
        data = _room_for(lengths)
        self._carry(lambda each: each.all_gather(data, parcel.data))
        return _unpacked(self, self.ranks, lengths, data)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """Return every member's object in *dst*, by position, and ``None`` elsewhere."""
        root, is_root = self._position(dst), self.rank == dst
        parcel = _Parcel(self, obj)
        lengths = _no_lengths(self.size())
        self._carry(lambda each: each.gather(parcel.length, lengths if is_root else None, root))
        data = _room_for(lengths)
        self._carry(lambda each: each.gather(parcel.data, data if is_root else None, root))
        parcel.raise_for_failure()
        return _unpacked(self, self.ranks, lengths, data) if is_root else None

    def scatter_object(self, objs: Sequence[Any] | None = None, src: int = 0) -> Any:
        """Return this member's object of those that *src* gives, one for each by position."""
        root = self._position(src)
        length = _no_lengths(1)
        if self.rank != src:
            self._carry(lambda each: each.scatter(length[0], None, root))
            data = _room_for(length)
            self._carry(lambda each: each.scatter(data[0], None, root))
            return _unpacked(self, [src], length, data)[0]
        if objs is None or len(objs) != self.size():
            raise ValueError(wrong_count("objs", objs, self.size()))
        parcels = [_Parcel(self, each) for each in objs]
        lengths = [each.length for each in parcels]
        self._carry(lambda each: each.scatter(length[0], lengths, root))
        mine, parts = _room_for(length), [each.data for each in parcels]
        self._carry(lambda each: each.scatter(mine[0], parts, root))
        for each in parcels:
            each.raise_for_failure()
        return _unpacked(self, [src], length, mine)[0]

    def _carry(self, run: Callable[[Operation], None]) -> None:
        self.carry_out(self.operation_on_objects(self._next_tag()), run)

    def encode_object(self, obj: object) -> bytes:
        """Return *obj* as bytes, for the object forms; a backend may use its serializer.

        Raises:
            SerializationError: it cannot be serialised.
        """
        try:
            import pickle  # where it is blocked, all but these forms can be used

            return pickle.dumps(obj, protocol=5)
        except Exception as error:
            raise SerializationError(f"an object of type {type(obj).__name__}", error) from error

    def decode_object(self, data: bytes) -> Any:
        """Return the object that :meth:`encode_object` wrote in another member.

        Raises:
            SerializationError: it cannot be rebuilt.
        """
        try:
            import pickle

            return pickle.loads(data)
        except Exception as error:
            raise SerializationError("a received object", error, loading=True) from error


class _Parcel:
    """An object on its way: its length travels first, so that others can make room.

    An object that cannot be serialised has a length too, so that nobody waits for it in vain.
    """

    def __init__(self, group: ObjectForms, obj: object) -> None:
        import torch

        self.error: SerializationError | None = None
        self.data: Tensor = torch.empty(0, dtype=torch.uint8)
        try:
            encoded = bytearray(group.encode_object(obj))
        except SerializationError as error:
            self.error = error
        else:
            if encoded:  # torch refuses an empty buffer
                self.data = torch.frombuffer(encoded, dtype=torch.uint8)
        length = _FAILED if self.error else len(self.data)
        self.length: Tensor = torch.tensor([length], dtype=torch.int64)

    def raise_for_failure(self) -> None:
        """Raise what went wrong here, once the others know."""
        if self.error is not None:
            raise self.error


def _no_lengths(count: int) -> list[Tensor]:
    """Return room for the lengths of *count* objects."""
    import torch

    return [torch.zeros(1, dtype=torch.int64) for _ in range(count)]


def _room_for(lengths: Sequence[Tensor]) -> list[Tensor]:
    """Return room for objects of *lengths*; none for one that could not be serialised."""
    import torch

    return [torch.empty(max(0, int(each)), dtype=torch.uint8) for each in lengths]


def _unpacked(
    group: ObjectForms, ranks: Sequence[int], lengths: Sequence[Tensor], data: Sequence[Tensor]
) -> list[Any]:
    """Return the objects that *ranks* sent.

    Raises:
        SerializationError: one could not be serialised where it came from, or rebuilt here.
    """
    _refuse_failures(ranks, lengths)
    return [group.decode_object(each.numpy().tobytes()) for each in data]


def _refuse_failures(ranks: Sequence[int], lengths: Sequence[Tensor]) -> None:
    for rank, length in zip(ranks, lengths, strict=True):
        if int(length) == _FAILED:
            raise SerializationError(f"the object of rank {rank}", "that member could not")
