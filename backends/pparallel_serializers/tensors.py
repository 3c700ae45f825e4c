"""torch tensors beside the stream: one buffer per storage, shared as it was among its tensors.

Each storage sends the window of bytes that its tensors of this object span, so that a small slice
does not drag a large storage along. A single tensor with large gaps (a column of a matrix) sends
its elements alone and gets its strides back at the receiver. Sparse, meta and quantised tensors
and subclasses of ``Tensor`` take torch's own road, only their storages are ours.

As with torch's own pickling ``grad``, hooks and the graph stay behind; a tensor that is not a
leaf arrives as a leaf with ``requires_grad`` set.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Buffer

from pparallel_serializers import shared_memory

if TYPE_CHECKING:
    import pickle

    import torch

    from pparallel_serializers.outofband import OutOfBandPickler, Reducer, Reduction, Window

INLINE = 512  #: bytes up to which a storage stays in the stream: a buffer would cost more
GAPS = 2  #: how many times its elements a tensor may span and still be sent with its gaps
ALIGN = 16  #: windows start at a multiple of the largest element
DENSE = -2

_names: dict[torch.dtype, str] = {}
_dtypes: dict[str, torch.dtype] = {}


def reducers() -> dict[type, Reducer]:
    """Return how torch's objects are reduced."""
    import torch

    _learn_dtypes()
    return {
        torch.Tensor: _reduce_tensor,
        torch.nn.Parameter: _reduce_tensor,
        torch.UntypedStorage: _reduce_untyped,
        torch.storage.TypedStorage: _reduce_typed,
        SentStorage: _reduce_sent,
    }


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
            dense = _over(
                self.storage,
                _carrier(only.element_size()),
                only.storage_offset(),
                only.shape,
                only.stride(),
            ).contiguous()
            return DENSE, _bytes_of(dense.untyped_storage(), 0, dense.nbytes)
        low = self.low - self.low % ALIGN
        return low, _bytes_of(self.storage, low, self.high)


class ReceivedStorage:
    """A storage that arrived: its bytes from *start* on, or one tensor's elements."""

    __slots__ = ("start", "storage")

    def __init__(self, storage: torch.UntypedStorage, start: int = 0) -> None:
        self.storage, self.start = storage, start


def load_storage(content: Buffer | Window, device: str = "cpu") -> ReceivedStorage:
    """Return the storage in *content*, aliasing it where that is writable CPU memory."""
    buffer, start = content if isinstance(content, tuple) else (content, 0)
    return ReceivedStorage(_storage_over(buffer, device), start)


def load_shared(handle: tuple[Any, ...]) -> ReceivedStorage:
    """Return the storage in another process's memory that *handle* names."""
    return ReceivedStorage(shared_memory.attach(handle))


def load_empty(device: str) -> ReceivedStorage:
    """Return a storage of no bytes."""
    import torch

    return ReceivedStorage(torch.UntypedStorage(0, device=_here(device)))


def rebuild(
    sent: ReceivedStorage,
    dtype: str,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    """Return a tensor over the storage that was *sent*."""
    if not _dtypes:
        _learn_dtypes()
    kind = _dtypes[dtype]
    if sent.start == DENSE:
        return _over(_spread(sent.storage, kind.itemsize, shape, stride), kind, 0, shape, stride)
    return _over(sent.storage, kind, offset - sent.start // kind.itemsize, shape, stride)


def rebuild_flagged(
    parameter: bool, requires_grad: bool, metadata: dict[str, bool], *args: Any
) -> torch.Tensor:
    """Return a ``Parameter`` or a tensor that is lazily conjugate, negative or needs a gradient."""
    import torch

    tensor = rebuild(*args)
    if metadata:
        torch._utils.set_tensor_metadata(tensor, metadata)  # type: ignore[no-untyped-call]
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def set_attributes(tensor: torch.Tensor, attributes: dict[str, object]) -> None:
    """Give *tensor* the attributes that Python code set on it."""
    tensor.__dict__.update(attributes)


def load_untyped(sent: ReceivedStorage) -> torch.UntypedStorage:
    """Return the whole storage that was *sent*."""
    return sent.storage


def load_typed(untyped: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    """Return *untyped* as torch's own reductions pass it on."""
    import torch

    return torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _reduce_tensor(pickler: OutOfBandPickler, tensor: torch.Tensor) -> Reduction:
    torch = sys.modules["torch"]
    device = tensor.device.type
    if (
        tensor.layout is not torch.strided
        or device not in ("cpu", "cuda")
        or tensor.is_quantized
        or tensor.is_nested
        or _has_names(tensor)
    ):
        return NotImplemented
    if pickler.share and device == "cuda":
        return shared_memory.reduce_cuda(tensor)
    shape, stride, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    if tensor.numel():
        sent = _sent(pickler, tensor.untyped_storage())
        sent.use(*_span(tensor.element_size(), shape, stride, offset), tensor)
    else:
        sent, offset = SentStorage(torch.UntypedStorage(0, device=tensor.device)), 0
    args = (sent, _names[tensor.dtype], offset, shape, stride)
    metadata = torch._utils.get_tensor_metadata(tensor) if _may_have_bits(tensor) else {}
    parameter = type(tensor) is not torch.Tensor
    if parameter or tensor.requires_grad or metadata:
        function: Any = rebuild_flagged
        args = (parameter, tensor.requires_grad, metadata, *args)  # type: ignore[assignment]
    else:
        function = rebuild
    if attributes := tensor.__dict__:
        return function, args, attributes, None, None, set_attributes
    return function, args


def _has_names(tensor: torch.Tensor) -> bool:
    has_names = getattr(tensor, "has_names", None)  # gone since torch 2.13
    return has_names is not None and has_names()


def _may_have_bits(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _span(
    size: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> tuple[int, int]:
    """Return the first byte of the storage that a tensor uses and the one after the last."""
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return offset * size, (last + 1) * size


def _sent(pickler: OutOfBandPickler, storage: torch.UntypedStorage) -> SentStorage:
    # By address: tensors over one foreign memory (from_numpy) have different storage objects.
    key = storage.data_ptr(), storage.nbytes()
    found = pickler.stores.get(key)
    if found is None:
        found = SentStorage(storage)
        if key[1]:
            pickler.stores[key] = found
    return found


def _reduce_sent(pickler: OutOfBandPickler, sent: SentStorage) -> Reduction:
    storage = sent.storage
    device = str(storage.device)
    if storage.nbytes() == 0:
        return load_empty, (device,)
    if pickler.share:
        return load_shared, (shared_memory.handle(storage),)
    if storage.nbytes() <= INLINE:
        return load_storage, (bytearray(_bytes_of(storage, 0, storage.nbytes())), device)
    outside: pickle.PickleBuffer = pickler.outside(sent)
    return load_storage, ((outside,) if device == "cpu" else (outside, device))


def _reduce_untyped(pickler: OutOfBandPickler, storage: torch.UntypedStorage) -> Reduction:
    if storage.device.type not in ("cpu", "cuda"):
        return NotImplemented
    sent = _sent(pickler, storage)
    sent.use(0, storage.nbytes(), None)
    return load_untyped, (sent,)


def _reduce_typed(pickler: OutOfBandPickler, storage: torch.TypedStorage) -> Reduction:
    return load_typed, (storage._untyped_storage, storage.dtype)


def _storage_over(buffer: Buffer, device: str) -> torch.UntypedStorage:
    import torch

    view = memoryview(buffer)
    if view.nbytes == 0:
        return torch.UntypedStorage(0, device=_here(device))
    if view.readonly:
        buffer = bytearray(buffer)
    base = torch.frombuffer(buffer, dtype=torch.uint8)
    if device != "cpu":
        base = base.to(_here(device))
    elif base.data_ptr() % ALIGN:
        base = base.clone()
    return base.untyped_storage()


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


def _over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    import torch

    # set_ and not as_strided: a view would share its version counter with its siblings.
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    return empty.set_(cast("torch.Storage", storage), offset, shape, stride)


def _spread(
    elements: torch.UntypedStorage, size: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.UntypedStorage:
    """Return a storage in which *elements* lie *stride* apart."""
    import torch

    dtype = _carrier(size)
    spread = torch.empty_strided(shape, stride, dtype=dtype, device=elements.device)
    dense = torch.empty(0, dtype=dtype, device=elements.device)
    spread.copy_(dense.set_(cast("torch.Storage", elements)).view(shape))
    return spread.untyped_storage()


def _carrier(size: int) -> torch.dtype:
    """Return a dtype whose elements can be copied, as those of some dtypes cannot."""
    import torch

    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return by_size.get(size, torch.complex128)


def _bytes_of(storage: torch.UntypedStorage, low: int, high: int) -> memoryview:
    import torch

    length = max(high - low, 0)
    view = _over(storage, torch.uint8, low, (length,), (1,))
    return memoryview(view.cpu().numpy())


def _learn_dtypes() -> None:
    import torch

    for name, value in vars(torch).items():
        if isinstance(value, torch.dtype):
            _dtypes[name] = value
            _names.setdefault(value, name)
