"""Pickle 5 whose large data travels beside the stream: what all but ``safe`` stand on.

The stream is followed by one record per buffer, ``(length, start)``, so that a cut or missing
buffer is noticed. *start* says what the buffer is: ``OPAQUE`` is handed to the unpickler as it
came, anything else is part of a tensor's storage (see :mod:`pparallel_serializers.storages`). What
is tensors alone has a form of its own (see :mod:`pparallel_serializers.short_form`).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from typing_extensions import Buffer, override

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer, SerializerConfig
from pparallel.runtime.interrupts import raise_interrupt
from pparallel_serializers import arrays, multiprocessing_objects, short_form, tensors
from pparallel_serializers.bytype import ByType
from pparallel_serializers.refusals import dump_refusal, load_refusal
from pparallel_serializers.storages import SentStorage

Reduction = Any  #: what ``__reduce_ex__`` may return, or NotImplemented
Reducer = Callable[["OutOfBandPickler", Any], Reduction]

OPAQUE = -1  #: a buffer that is no tensor's storage
KEEP = 1 << 16  #: bytes of stream above which a pickler is not used again: its memo is large

_RECORD = struct.Struct("<Qq")
_NOT_SHORT = frozenset({"cpu", "shared"})  #: what the short form knows nothing of

#: how objects of exactly these types are reduced
reducers: ByType[Reducer] = ByType(
    {},
    {
        "torch": tensors.reducers,
        "numpy": arrays.reducers,
        "multiprocessing.connection": multiprocessing_objects.reducers,
    },
)


class Window(NamedTuple):
    """The bytes of a storage from *start* on, or of one tensor (``storages.DENSE``)."""

    buffer: Buffer
    start: int


class OutOfBandPickler(pickle.Pickler):
    """Takes tensors and arrays out of band, without copying their bytes."""

    def __init__(self, share: frozenset[str] = frozenset()) -> None:
        self.share = share  # what goes by reference: a device's, or ``shared``
        self.parts: list[bytes] = []
        self.stand_ins: list[pickle.PickleBuffer] = []
        self.contents: dict[int, memoryview | SentStorage] = {}
        self.stores: dict[tuple[int, int], SentStorage] = {}
        super().__init__(_Parts(self.parts), 5, buffer_callback=self.stand_ins.append)

    @override
    def reducer_override(self, obj: Any) -> Reduction:
        reduce = reducers.get(type(obj))
        return NotImplemented if reduce is None else reduce(self, obj)

    def outside(self, content: memoryview | SentStorage) -> pickle.PickleBuffer:
        """Return a stand-in that becomes *content*, as a buffer of its own, after the dump."""
        # Writable, or the receiver would be handed a read-only view of what it owns.
        stand_in = pickle.PickleBuffer(bytearray())
        self.contents[id(stand_in)] = content
        return stand_in

    def take(self) -> list[Buffer]:
        """Return what :meth:`dump` wrote, and forget all that belongs to it."""
        out = self.written()
        self.clear()
        return out

    def written(self) -> list[Buffer]:
        """Return what :meth:`dump` wrote."""
        return self._finished() if self.stand_ins else [self._stream()]

    def clear(self) -> None:
        """Be as new."""
        for each in (self.parts, self.stand_ins, self.contents, self.stores):
            each.clear()
        self.clear_memo()

    def _stream(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def _finished(self) -> list[Buffer]:
        out: list[Buffer] = [b""]
        for stand_in in self.stand_ins:
            content = self.contents.get(id(stand_in))
            start = OPAQUE
            if content is None:
                data = stand_in.raw()
            elif isinstance(content, SentStorage):
                start, data = content.window()
            else:
                data = content
            self.parts.append(_RECORD.pack(data.nbytes, start))
            out.append(data)
        out[0] = self._stream()
        return out


class OutOfBandSerializer(Serializer):
    """What the serializers share: each says which kind of pickler it takes."""

    config: SerializerConfig

    def __init__(
        self, kind: type[OutOfBandPickler] = OutOfBandPickler, share: Iterable[str] = ()
    ) -> None:
        self._kind = kind
        self._pass_on(frozenset(share))
        self._shared: frozenset[str] = frozenset()  # what :meth:`sharing` was asked for
        # A new pickler costs more than a small dump. Popped while in use: an object's own
        # ``__reduce__`` may serialise something too.
        self._idle: list[OutOfBandPickler] = []

    def sharing(self, device: str) -> Self:
        """Return a serializer like this one that passes the tensors of *device* by reference.

        CPU tensors are moved into shared memory, CUDA tensors go by CUDA IPC. The sender keeps
        them until they have arrived.
        """
        return _sharing(type(self), self.config, self._shared | {device})

    def dumps_to_start(self, obj: object) -> list[Buffer]:
        """Return *obj* as buffers for a process that is being started, by the calling thread.

        What :mod:`multiprocessing` lets pass to such a process alone may be in it.

        Raises:
            SerializationError: *obj* cannot be serialised.
        """
        pickler = self._pickler()
        own = getattr(pickler, "dispatch_table", {})
        pickler.dispatch_table = {**multiprocessing_objects.table(), **own}
        reducers.look()
        try:
            pickler.dump(obj)
            return pickler.take()
        except Exception as error:
            raise_interrupt(error)
            if isinstance(error, SerializationError) and error.path is None:
                raise  # of a global that the object uses
            raise dump_refusal(obj, error, pickler.memo) from error

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        if self._shared:
            return _sharing, (type(self), self.config, self._shared)
        return super().__reduce__()

    @override
    def dumps(self, obj: object) -> list[Buffer]:
        if self._tries_short and (short := short_form.dumps(obj)) is not None:
            return short
        if reducers.waiting:
            reducers.look()
        try:
            pickler = self._idle.pop()
        except IndexError:
            pickler = self._pickler()
        try:
            pickler.dump(obj)
            out = pickler.take()
        except Exception as error:
            raise_interrupt(error)
            if isinstance(error, SerializationError) and error.path is None:
                raise  # of a global that the object uses
            raise dump_refusal(obj, error, pickler.memo) from error
        if len(out[0]) < KEEP:  # type: ignore[arg-type]
            self._idle.append(pickler)
        return out

    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        try:
            if not buffers:
                raise pickle.UnpicklingError("there are no bytes at all")
            return self._read(buffers)
        except SerializationError:
            raise
        except Exception as error:
            raise_interrupt(error)
            raise load_refusal(buffers, error) from error

    def _read(self, buffers: Sequence[Buffer]) -> Any:
        stream = memoryview(buffers[0]).cast("B")
        if stream[:1] == short_form.MARK:
            return short_form.loads(stream[1:], buffers[1:])
        return read(buffers)

    def _pickler(self) -> OutOfBandPickler:
        return self._kind(self._share)

    def _pass_on(self, share: frozenset[str]) -> None:
        """Pass by reference what *share* names: the tensors of a device, or those ``shared``."""
        self._share, self._tries_short, self.lends = share, not share & _NOT_SHORT, bool(share)


S = TypeVar("S", bound=OutOfBandSerializer)


def _sharing(kind: type[S], config: Any, devices: frozenset[str]) -> S:
    shared = kind(config)
    shared._pass_on(shared._share | devices)
    shared._shared = devices
    return shared


class _Parts:
    """The file that a pickler writes to; what it writes is not copied together unless it must."""

    __slots__ = ("write",)

    def __init__(self, parts: list[bytes]) -> None:
        self.write = parts.append


def read(buffers: Sequence[Buffer], load: Callable[..., Any] = pickle.loads) -> Any:
    """Return the object in *buffers*; *load* reads the stream, with the buffers beside it."""
    stream = memoryview(buffers[0]).cast("B")
    if len(buffers) == 1:
        return load(stream)
    end = len(stream) - _RECORD.size * (len(buffers) - 1)
    if end <= 0:
        raise pickle.UnpicklingError("the stream was cut short")
    return load(stream[:end], buffers=_checked(stream[end:], buffers))


def _checked(records: memoryview, buffers: Sequence[Buffer]) -> Iterator[Buffer | Window]:
    for (length, start), buffer in zip(_RECORD.iter_unpack(records), buffers[1:], strict=True):
        found = memoryview(buffer).nbytes
        if found != length:
            raise pickle.UnpicklingError(f"a buffer has {found} of its {length} bytes")
        yield buffer if start == OPAQUE else Window(buffer, start)
