"""torch tensors beside the stream.

Sparse, meta and quantised tensors and subclasses of ``Tensor`` take torch's own road, only their
storages are ours. As with torch's own pickling ``grad``, hooks and the graph stay behind; a tensor
that is not a leaf arrives as a leaf with ``requires_grad`` set.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pparallel_serializers import shared_memory, storages
from pparallel_serializers.storages import (
    ReceivedStorage,
    Sender,
    SentStorage,
    over,
    sent_for,
    spread,
)

if TYPE_CHECKING:
    import torch

    from pparallel_serializers.outofband import OutOfBandPickler, Reducer, Reduction


_names: dict[torch.dtype, str] = {}
_dtypes: dict[str, torch.dtype] = {}


def reducers() -> dict[type, Reducer]:
    """Return how torch's objects are reduced."""
    import torch

    return {
        torch.Tensor: _reduce_tensor,
        torch.nn.Parameter: _reduce_tensor,
        torch.UntypedStorage: storages.reduce_untyped,
        torch.storage.TypedStorage: storages.reduce_typed,
        SentStorage: storages.reduce_sent,
    }


def rebuild(
    sent: ReceivedStorage,
    dtype: str,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    """Return a tensor over the storage that was *sent*."""
    kind = dtype_named(dtype)
    if sent.start == storages.DENSE:
        return over(spread(sent.storage, kind.itemsize, shape, stride), kind, 0, shape, stride)
    return over(sent.storage, kind, offset - sent.start // kind.itemsize, shape, stride)


def rebuild_flagged(
    parameter: bool, requires_grad: bool, metadata: dict[str, bool], *args: Any
) -> torch.Tensor:
    """Return a ``Parameter`` or a tensor that is lazily conjugate, negative or needs a gradient."""
    import torch

    tensor = rebuild(*args)
    if metadata:
        torch._utils.set_tensor_metadata(tensor, metadata)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def set_attributes(tensor: torch.Tensor, attributes: dict[str, object]) -> None:
    """Give *tensor* the attributes that Python code set on it."""
    tensor.__dict__.update(attributes)


def dtype_named(name: str) -> torch.dtype:
    """Return torch's dtype of this name."""
    if not _dtypes:
        _learn_dtypes()
    return _dtypes[name]


def name_of(dtype: torch.dtype) -> str:
    """Return torch's name of *dtype*."""
    if not _names:
        _learn_dtypes()
    return _names[dtype]


def is_strided(tensor: torch.Tensor) -> bool:
    """Return whether all that *tensor* holds is strided memory."""
    torch = sys.modules["torch"]
    return not (
        tensor.layout is not torch.strided
        or tensor.device.type not in ("cpu", "cuda")
        or tensor.is_quantized
        or tensor.is_nested
        or _has_names(tensor)
    )


def laid_out(
    sender: Sender, tensor: torch.Tensor
) -> tuple[SentStorage, str, int, tuple[int, ...], tuple[int, ...]]:
    """Return what :func:`rebuild` takes, and note what *tensor* needs of its storage."""
    shape, stride, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    if tensor.numel():
        sent = sent_for(sender, tensor.untyped_storage())
        sent.use(*_span(tensor.element_size(), shape, stride, offset), tensor)
    else:
        torch = sys.modules["torch"]
        sent, offset = SentStorage(torch.UntypedStorage(0, device=tensor.device)), 0
    return sent, name_of(tensor.dtype), offset, shape, stride


def bits_of(tensor: torch.Tensor) -> dict[str, bool]:
    """Return whether *tensor* is lazily conjugate or negative, as torch notes it."""
    if not (tensor.is_conj() or tensor.is_neg()):
        return {}
    import torch

    bits: dict[str, bool] = torch._utils.get_tensor_metadata(tensor)
    return bits


def _reduce_tensor(pickler: OutOfBandPickler, tensor: torch.Tensor) -> Reduction:
    torch = sys.modules["torch"]
    if not is_strided(tensor):
        return NotImplemented
    if tensor.device.type == "cuda" and "cuda" in pickler.share:
        return shared_memory.reduce_cuda(tensor)
    args: tuple[Any, ...] = laid_out(pickler, tensor)
    metadata = bits_of(tensor)
    parameter = type(tensor) is not torch.Tensor
    if parameter or tensor.requires_grad or metadata:
        function: Any = rebuild_flagged
        args = (parameter, tensor.requires_grad, metadata, *args)
    else:
        function = rebuild
    if attributes := tensor.__dict__:
        return function, args, attributes, None, None, set_attributes
    return function, args


def _has_names(tensor: torch.Tensor) -> bool:
    has_names = getattr(tensor, "has_names", None)  # gone since torch 2.13
    return has_names is not None and has_names()


def _span(
    size: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> tuple[int, int]:
    """Return the first byte of the storage that a tensor uses and the one after the last."""
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return offset * size, (last + 1) * size


def _learn_dtypes() -> None:
    import torch

    for name, value in vars(torch).items():
        if isinstance(value, torch.dtype):
            _dtypes[name] = value
            _names.setdefault(value, name)
