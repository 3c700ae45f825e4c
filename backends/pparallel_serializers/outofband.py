"""Pickle 5 whose large data travels beside the stream: the basis of all but ``safe``.

The stream is followed by one record per buffer, ``(length, start)``, so that a cut or missing
buffer is noticed. *start* says what the buffer is: ``OPAQUE`` is handed to the unpickler as it
came, anything else is part of a tensor's storage (see :mod:`pparallel_serializers.storages`). What
is tensors alone has a form of its own (see :mod:`pparallel_serializers.short_form`).
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from typing_extensions import Buffer, override

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer, SerializerConfig
from pparallel_serializers import arrays, short_form, tensors
from pparallel_serializers.bytype import ByType
from pparallel_serializers.refusals import dump_refusal, load_refusal
from pparallel_serializers.storages import SentStorage

Reduction = Any  #: as ``__reduce_ex__`` returns it, or NotImplemented
Reducer = Callable[["OutOfBandPickler", Any], Reduction]

OPAQUE = -1  #: a buffer that is no tensor's storage
KEEP = 1 << 16  #: bytes of stream above which a pickler is not used again: its memo is large

_RECORD = struct.Struct("<Qq")
#: writable, or the receiver would be handed a read-only view of its own memory
_STAND_IN = pickle.PickleBuffer(bytearray())
_NOT_SHORT = frozenset({"cpu", "shared"})  #: the short form knows nothing of these

#: how objects of exactly these types are reduced
reducers: ByType[Reducer] = ByType(
    {},
    {
        "torch": tensors.reducers,
        "numpy": arrays.reducers,
        "multiprocessing.connection": lambda: {
            sys.modules["multiprocessing.connection"].Connection: _reduce_connection
        },
    },
)


class Window(NamedTuple):
    """The bytes of a storage from *start* on, or of one tensor (``storages.DENSE``)."""

    buffer: Buffer
    start: int


class OutOfBandPickler(pickle.Pickler):
    """Takes tensors and arrays out of band, without copying their bytes."""

    def __init__(self, share: frozenset[str] = frozenset()) -> None:
        self.share = share  #: tensors that go by reference: of a device, or those ``shared``
        self.parts: list[bytes] = []
        self.buffers: list[pickle.PickleBuffer] = []
        self.contents: list[memoryview | SentStorage] = []  #: instead of those that stand in
        self.stores: dict[tuple[int, int], SentStorage] = {}
        super().__init__(_Parts(self.parts), 5, buffer_callback=self.buffers.append)

    @override
    def reducer_override(self, obj: Any) -> Reduction:
        reduce = reducers.get(type(obj))
        return NotImplemented if reduce is None else reduce(self, obj)

    def outside(self, content: memoryview | SentStorage) -> pickle.PickleBuffer:
        """Return a stand-in, to be pickled next, for *content* as a buffer of its own."""
        self.contents.append(content)
        return _STAND_IN

    def take(self) -> list[Buffer]:
        """Return the frames that :meth:`dump` wrote, and forget all that belongs to them."""
        out = self.written()
        self.clear()
        return out

    def written(self) -> list[Buffer]:
        """Return the frames that :meth:`dump` wrote."""
        out: list[Buffer] = []
        contents = iter(self.contents)
        for each in self.buffers:
            content = next(contents) if each is _STAND_IN else each.raw()
            if isinstance(content, SentStorage):
                start, data = content.window()
            else:
                start, data = OPAQUE, content
            self.parts.append(_RECORD.pack(data.nbytes, start))
            out.append(data)
        return [self.parts[0] if len(self.parts) == 1 else b"".join(self.parts), *out]

    def clear(self) -> None:
        """Be as new."""
        for each in (self.parts, self.buffers, self.contents, self.stores):
            each.clear()
        self.clear_memo()


class OutOfBandSerializer(Serializer):
    """The common part of the serializers: each says which kind of pickler it takes."""

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
        return self._sharing(self.config, self._shared | {device})

    def dumps_to_start(self, obj: object) -> list[Buffer]:
        """Return *obj* as buffers for a process that is being started, by the calling thread.

        What :mod:`multiprocessing` lets pass to such a process alone may be in it.

        Raises:
            SerializationError: *obj* cannot be serialised.
        """
        pickler = self._pickler()
        own = getattr(pickler, "dispatch_table", {})
        pickler.dispatch_table = {**_of_multiprocessing(), **own}
        reducers.look()
        return self._dumped(pickler, obj)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        if self._shared:
            return type(self)._sharing, (self.config, self._shared)
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
        out = self._dumped(pickler, obj)
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
            raise load_refusal(buffers, error) from error

    def _read(self, buffers: Sequence[Buffer]) -> Any:
        stream = memoryview(buffers[0]).cast("B")
        if stream[:1] == short_form.MARK:
            return short_form.loads(stream[1:], buffers[1:])
        return read(buffers)

    @staticmethod
    def _dumped(pickler: OutOfBandPickler, obj: object) -> list[Buffer]:
        try:
            pickler.dump(obj)
            return pickler.take()
        except Exception as error:
            if isinstance(error, SerializationError) and error.path is None:
                raise  # of a global that the object uses
            raise dump_refusal(obj, error, pickler.memo) from error

    @classmethod
    def _sharing(cls, config: Any, devices: frozenset[str]) -> Self:
        shared = cls(config)
        shared._pass_on(shared._share | devices)
        shared._shared = devices
        return shared

    def _pickler(self) -> OutOfBandPickler:
        return self._kind(self._share)

    def _pass_on(self, share: frozenset[str]) -> None:
        """Pass by reference what *share* names: the tensors of a device, or those ``shared``."""
        self._share, self._tries_short, self.lends = share, not share & _NOT_SHORT, bool(share)


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


def _of_multiprocessing() -> Mapping[type, Callable[[Any], Any]]:
    """Return how objects are reduced for a process that is being started.

    Those of torch's are left out: whether tensors are shared is not for them to say.
    """
    reduction: Any = sys.modules.get("multiprocessing.reduction")
    if reduction is None:
        return copyreg.dispatch_table
    everything = reduction.ForkingPickler(io.BytesIO()).dispatch_table
    return {
        kind: reduce
        for kind, reduce in everything.items()
        if not str(getattr(reduce, "__module__", "")).startswith("torch.")
    }


def _reduce_connection(pickler: OutOfBandPickler, connection: Any) -> Reduction:
    # Pickled like any other object it would arrive as the bare number of a descriptor.
    return _of_multiprocessing()[type(connection)](connection)
