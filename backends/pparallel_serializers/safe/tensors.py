"""Tensors as data: taken apart into numbers, and held against their storages when they return."""

from __future__ import annotations

import math
import re
import reprlib
from typing import TYPE_CHECKING, Any

from typing_extensions import Buffer

from pparallel_serializers import storages, tensors
from pparallel_serializers.refusals import RefusedError
from pparallel_serializers.safe import stream
from pparallel_serializers.safe.stream import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pparallel_serializers.safe.reader import Reader
    from pparallel_serializers.safe.writer import Writer
    from pparallel_serializers.storages import ReceivedStorage

_PARAMETER, _REQUIRES_GRAD, _CONJUGATE, _NEGATIVE = 1, 2, 4, 8
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")


def splitters() -> dict[type, Callable[[Writer, Any], Node]]:
    """Return how torch's objects are taken apart."""
    import torch

    return {
        torch.Tensor: _split,
        torch.nn.Parameter: _split,
        torch.Size: lambda writer, size: Node(stream.SIZE, size),
    }


def size(children: list[Any]) -> torch.Size:
    """Return the ``torch.Size`` of these numbers."""
    import torch

    return torch.Size(stream.sizes(children, signed=True))


def storage(content: Buffer, device: object, start: object) -> ReceivedStorage:
    """Return the storage in *content*."""
    if type(device) is not str or not _DEVICE.fullmatch(device):
        raise RefusedError(f"{reprlib.repr(device)} is no device")
    if type(start) is not int or (
        start != storages.DENSE and (start < 0 or start % storages.ALIGN)
    ):
        raise RefusedError("no storage starts there")
    return storages.load_storage((content, start), device)  # type: ignore[arg-type]


def join(reader: Reader, children: list[Any]) -> torch.Tensor:
    """Return a tensor over one of the storages that *reader* has."""
    number, name, *numbers = children
    number, offset, flags, dims, *layout = stream.sizes([number, *numbers])
    if len(layout) != 2 * dims or dims > stream.DIMENSIONS or flags > 15:
        raise RefusedError("a tensor has lost its shape")
    shape, stride = tuple(layout[:dims]), tuple(layout[dims:])
    dtype = _dtype(name)
    sent = reader.storages[number]
    _check(sent, dtype.itemsize, offset, shape, stride)
    tensor = tensors.rebuild_flagged(
        bool(flags & _PARAMETER),
        bool(flags & _REQUIRES_GRAD),
        _bits(flags, dtype),
        tensors.rebuild,
        sent,
        name,
        offset,
        shape,
        stride,
    )
    return reader.add(tensor)


def _split(writer: Writer, tensor: torch.Tensor) -> Node:
    return writer.once(tensor, lambda: _taken_apart(writer, tensor))


def _taken_apart(writer: Writer, tensor: torch.Tensor) -> Node:
    import torch

    if not tensors.is_strided(tensor) or tensor.dim() > stream.DIMENSIONS:
        raise RefusedError(
            "safe takes tensors of strided memory on cpu or cuda, not sparse, quantised, named or"
            f" meta ones, and of at most {stream.DIMENSIONS} dimensions",
            tensor,
        )
    sent, dtype, offset, shape, stride = tensors.laid_out(writer, tensor)
    flags = _PARAMETER if type(tensor) is torch.nn.Parameter else 0
    flags |= _REQUIRES_GRAD if tensors.needs_grad(tensor) else 0
    bits = tensors.bits_of(tensor)
    flags |= _CONJUGATE if bits.get("conj") else 0
    flags |= _NEGATIVE if bits.get("neg") else 0
    numbers = (offset, flags, len(shape), *shape, *stride)
    node = Node(stream.TENSOR, (writer.storage(sent), dtype, *numbers))
    attributes = tensor.__dict__
    return Node(stream.ATTRIBUTES, (node, attributes)) if attributes else node


def _check(
    sent: ReceivedStorage, size: int, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    """Hold a tensor's layout against the bytes that are there: torch would make them more."""
    span = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    largest = max(math.prod(n or 1 for n in shape) * size, *stride, 0)
    if largest > stream.LARGEST:
        raise RefusedError(f"no tensor has the shape {shape} and strides {stride}")
    count, there = math.prod(shape), sent.storage.nbytes()
    if count == 0:
        fits = offset == 0
    elif sent.start == storages.DENSE:
        fits = count * size == there
    else:
        fits = 0 <= offset * size - sent.start <= there - span * size
    if not fits:
        raise RefusedError(f"a tensor of shape {shape} reaches beyond the bytes that came")


def _bits(flags: int, dtype: torch.dtype) -> dict[str, bool]:
    bits = {}
    if flags & _CONJUGATE and dtype.is_complex:
        bits["conj"] = True
    if flags & _NEGATIVE and (dtype.is_complex or dtype.is_floating_point):
        bits["neg"] = True
    if len(bits) != bool(flags & _CONJUGATE) + bool(flags & _NEGATIVE):
        raise RefusedError(f"no tensor of {dtype} is lazily conjugate or negative")
    return bits


def _dtype(name: object) -> torch.dtype:
    # What torch calls quantised needs a quantiser, which no stream has.
    if type(name) is not str or name.startswith("q"):
        raise RefusedError(f"{reprlib.repr(name)} is no dtype of tensors that safe takes")
    try:
        return tensors.dtype_named(name)
    except KeyError:
        raise RefusedError(f"torch has no dtype {reprlib.repr(name)} here") from None
