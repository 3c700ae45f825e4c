"""A tensor's storage on its way: one buffer each, shared as it was among the tensors over it.

Each storage sends the window of bytes that its tensors of this object span, so that a small slice
does not drag a large storage along. A single tensor with large gaps (a column of a matrix) sends
its elements alone, and arrives contiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from typing_extensions import Buffer

from pparallel_serializers import shared_memory

if TYPE_CHECKING:
    import pickle

    import torch

    from pparallel.runtime import reopening
    from pparallel_serializers.outofband import OutOfBandPickler, Reduction, Window

INLINE = 512  #: bytes up to which a storage or array stays in the stream: a buffer costs more
GAPS = 2  #: how many times its elements a tensor or array may span and keep its strides
ALIGN = 16  #: windows start at a multiple of the largest element
DENSE = -2  #: stands for the start of a window that holds one tensor's elements alone

#: References to what is in shared memory already: "shared" as with torch.multiprocessing, which
#: refuses a tensor in the midst of a graph, "launched" as to ranks.
_SHARED = frozenset({"shared", "launched"})


class SentStorage:
    """A storage on its way out, and what its tensors need of it."""

    __slots__ = ("high", "low", "only", "storage", "used")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.low, self.high = storage.nbytes(), 0
        self.used = False
        self.only: torch.Tensor | None = None

    def use(self, low: int, high: int, tensor: torch.Tensor | None) -> None:
        """Note that *tensor*, or the storage itself, needs the bytes from *low* to *high*."""
        self.only = None if self.used else tensor
        self.used = True
        self.low, self.high = min(self.low, low), max(self.high, high)

    def window(self) -> tuple[int, memoryview]:
        """Return where the bytes to send start, or ``DENSE``, and the bytes."""
        only = self.only
        if only is not None and self.high - self.low > GAPS * only.numel() * only.element_size():
            elements = over(
                self.storage,
                _carrier(only.element_size()),
                int(only.storage_offset()),
                only.shape,
                only.stride(),
            ).contiguous()
            return DENSE, _bytes_of(elements.untyped_storage(), 0, elements.nbytes)
        low = self.low - self.low % ALIGN
        return low, _bytes_of(self.storage, low, self.high)


class ReceivedStorage(NamedTuple):
    """A storage that arrived: its bytes from *start* on, or one tensor's elements."""

    storage: torch.UntypedStorage
    start: int = 0


class Sender(Protocol):
    """A pickler or writer: it knows the storages of the object that is on its way."""

    stores: dict[tuple[int, int], SentStorage]


def sent_for(sender: Sender, storage: torch.UntypedStorage) -> SentStorage:
    """Return *storage* on its way out, the same for all tensors over it."""
    # By address: tensors over one foreign memory (from_numpy) have different storage objects.
    key = storage.data_ptr(), storage.nbytes()
    found = sender.stores.get(key)
    if found is None:
        found = SentStorage(storage)
        if key[1]:
            sender.stores[key] = found
    return found


def reduce_sent(pickler: OutOfBandPickler, sent: SentStorage) -> Reduction:
    """Return *sent* as a buffer that is cut out when all its tensors are known."""
    storage = sent.storage
    device = str(storage.device)
    if storage.nbytes() == 0:
        return load_storage, (b"", device)
    if storage.device.type in pickler.share or (pickler.share & _SHARED and _is_shared(storage)):
        return load_shared, shared_memory.handle(storage)
    if storage.nbytes() <= INLINE:
        return load_storage, (bytearray(_bytes_of(storage, 0, storage.nbytes())), device)
    outside: pickle.PickleBuffer = pickler.outside(sent)
    return load_storage, ((outside,) if device == "cpu" else (outside, device))


def reduce_untyped(pickler: OutOfBandPickler, storage: torch.UntypedStorage) -> Reduction:
    """Return a whole storage, as torch's own reductions of rarer tensors hold it."""
    if storage.device.type not in ("cpu", "cuda"):
        return NotImplemented
    sent = sent_for(pickler, storage)
    sent.use(0, storage.nbytes(), None)
    return getattr, (sent, "storage")


def reduce_typed(pickler: OutOfBandPickler, storage: torch.TypedStorage) -> Reduction:
    """Return the deprecated form that torch's own reductions still use."""
    return load_typed, (storage._untyped_storage, storage.dtype)


def load_storage(content: Buffer | Window, device: str = "cpu") -> ReceivedStorage:
    """Return the storage in *content*, aliasing it where that is writable CPU memory."""
    buffer, start = content if isinstance(content, tuple) else (content, 0)
    return ReceivedStorage(_storage_over(buffer, device), start)


def load_shared(handle: reopening.Handle, length: int) -> ReceivedStorage:
    """Return the storage in another process's memory that *handle* names."""
    return ReceivedStorage(shared_memory.attach(handle, length))


def load_typed(untyped: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    """Return *untyped* as torch's own reductions pass it on."""
    import torch

    return torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...] = (),
) -> torch.Tensor:
    """Return a tensor over *storage*, contiguous unless a *stride* is given."""
    import torch

    # set_ and not as_strided: a view would share its version counter with its siblings.
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    return empty.set_(cast("Any", storage), offset, shape, stride)


def aligned(buffer: Buffer, dtype: torch.dtype) -> torch.Tensor:
    """Return the elements in *buffer*, over it where it may be written to and starts well."""
    import torch

    if memoryview(buffer).readonly:
        buffer = bytearray(buffer)
    base = torch.frombuffer(buffer, dtype=dtype)
    return base.clone() if base.data_ptr() % ALIGN else base


def _is_shared(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "cpu" and storage.is_shared()


def _storage_over(buffer: Buffer, device: str) -> torch.UntypedStorage:
    import torch

    is_empty = memoryview(buffer).nbytes == 0
    base = torch.empty(0, dtype=torch.uint8) if is_empty else aligned(buffer, torch.uint8)
    return (base if device == "cpu" else base.to(_here(device))).untyped_storage()


def _here(device: str) -> str:
    """Return *device*, or the current one of its type where that number does not exist."""
    kind, _, index = device.partition(":")
    if kind == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError(f"a tensor lives on {device}, and this process has no such device")
        if index and int(index) >= torch.cuda.device_count():
            return kind
    return device


def _carrier(size: int) -> torch.dtype:
    """Return a dtype whose elements can be copied, as those of some dtypes cannot."""
    import torch

    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return by_size.get(size, torch.complex128)


def _bytes_of(storage: torch.UntypedStorage, low: int, high: int) -> memoryview:
    import torch

    length = max(high - low, 0)
    view = over(storage, torch.uint8, low, (length,), (1,))
    return memoryview(cast("Buffer", view.cpu().numpy()))
