"""torch tensors beside the stream.

Sparse, meta and quantised tensors and subclasses of ``Tensor`` take torch's own road, only their
storages are ours. As with torch's own pickling ``grad``, hooks and the graph stay behind; a tensor
in the midst of a graph arrives detached, since a ``backward()`` would end at it. Functions and
modules in TorchScript travel as torch saves them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pparallel_serializers import shared_memory, storages
from pparallel_serializers.storages import (
    ReceivedStorage,
    Sender,
    SentStorage,
    over,
    sent_for,
)

if TYPE_CHECKING:
    import torch

    from pparallel_serializers.outofband import OutOfBandPickler, Reducer, Reduction


def reducers() -> dict[type, Reducer]:
    """Return how torch's objects are reduced."""
    import torch

    jit: Any = torch.jit
    scripted = (jit.ScriptFunction, jit.RecursiveScriptModule, jit.TopLevelTracedModule)
    return {
        torch.Tensor: _reduce_tensor,
        torch.nn.Parameter: _reduce_tensor,
        torch.UntypedStorage: storages.reduce_untyped,
        torch.storage.TypedStorage: storages.reduce_typed,
        SentStorage: storages.reduce_sent,
        **dict.fromkeys(scripted, _reduce_script),
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
        return over(sent.storage, kind, 0, shape)
    return over(sent.storage, kind, offset - sent.start // kind.itemsize, shape, stride)


def rebuild_flagged(
    parameter: bool,
    requires_grad: bool,
    metadata: dict[str, bool],
    build: Callable[..., torch.Tensor],
    *args: Any,
) -> torch.Tensor:
    """Return a ``Parameter`` or a tensor that is lazily conjugate, negative or needs a gradient."""
    import torch

    tensor = build(*args)
    if metadata:
        torch._utils.set_tensor_metadata(tensor, metadata)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def set_attributes(tensor: torch.Tensor, attributes: dict[str, object]) -> None:
    """Give *tensor* the attributes that Python code set on it."""
    tensor.__dict__.update(attributes)


def load_script(saved: bytes) -> Any:
    """Return the module that was *saved*; of a function one whose ``forward`` it is."""
    import torch

    # As torch.jit.load, which warns that it is deprecated.
    read: Any = torch._C.import_ir_module_from_buffer
    module = read(torch._C.CompilationUnit(), saved, None, {}, False)
    return torch.jit._recursive.wrap_cpp_module(module)


@functools.cache
def dtype_named(name: str) -> torch.dtype:
    """Return torch's dtype of this name."""
    import torch

    found = vars(torch)[name]
    if not isinstance(found, torch.dtype):
        raise KeyError(name)
    return found


@functools.cache
def name_of(dtype: torch.dtype) -> str:
    """Return torch's name of *dtype*."""
    return str(dtype).removeprefix("torch.")


def is_strided(tensor: torch.Tensor) -> bool:
    """Return whether all that *tensor* holds is strided memory."""
    has_names = getattr(tensor, "has_names", None)  # gone since torch 2.13
    return not (
        tensor.layout is not sys.modules["torch"].strided
        or tensor.device.type not in ("cpu", "cuda")
        or tensor.is_quantized
        or tensor.is_nested
        or (has_names is not None and has_names())
    )


def laid_out(
    sender: Sender, tensor: torch.Tensor
) -> tuple[SentStorage, str, int, tuple[int, ...], tuple[int, ...]]:
    """Return the arguments of :func:`rebuild`, and note the bytes that *tensor* needs."""
    shape, stride, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    if tensor.numel():
        sent, size = sent_for(sender, tensor.untyped_storage()), tensor.element_size()
        last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        sent.use(offset * size, (last + 1) * size, tensor)
    else:
        torch = sys.modules["torch"]
        sent, offset = SentStorage(torch.UntypedStorage(0, device=tensor.device)), 0
    return sent, name_of(tensor.dtype), offset, shape, stride


def needs_grad(tensor: torch.Tensor) -> bool:
    """Return whether *tensor* requires gradients where it arrives: without its graph."""
    return tensor.requires_grad and tensor.is_leaf


def bits_of(tensor: torch.Tensor) -> dict[str, bool]:
    """Return whether *tensor* is lazily conjugate or negative, as torch notes it."""
    if not (tensor.is_conj() or tensor.is_neg()):
        return {}
    import torch

    bits: dict[str, bool] = torch._utils.get_tensor_metadata(tensor)
    return bits


def _reduce_script(pickler: OutOfBandPickler, scripted: Any) -> Reduction:
    return load_script, (scripted.save_to_buffer(),)


def _reduce_tensor(pickler: OutOfBandPickler, tensor: torch.Tensor) -> Reduction:
    torch = sys.modules["torch"]
    if not tensor.is_leaf and "shared" in pickler.share:
        torch.multiprocessing.reductions.reduce_tensor(tensor)  # raises
    if not is_strided(tensor):
        return NotImplemented if tensor.is_leaf else tensor.detach().__reduce_ex__(5)
    function: Callable[..., Any] = rebuild
    args: tuple[Any, ...]
    if tensor.device.type == "cuda" and "cuda" in pickler.share:
        function, args = shared_memory.reduce_cuda(tensor)
    else:
        args = laid_out(pickler, tensor)
    metadata = bits_of(tensor)
    parameter = type(tensor) is not torch.Tensor
    if parameter or needs_grad(tensor) or metadata:
        args = (parameter, needs_grad(tensor), metadata, function, *args)
        function = rebuild_flagged
    if attributes := tensor.__dict__:
        return function, args, attributes, None, None, set_attributes
    return function, args
