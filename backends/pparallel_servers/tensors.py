"""How plain tensors lie in one stretch of memory.

Tensors over one storage share it there too: of each storage the part lies there that its tensors
span.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pparallel.machine.copying import lies_in_one_run

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ALIGN = 64  #: windows begin at a multiple of it
ELEMENT = 16  #: bytes of the largest element
_GAPS = 2  #: how many times its elements a tensor may span

#: of each tensor: dtype, shape, stride, offset, and the number of its storage
Signature = tuple[tuple[Any, Any, tuple[int, ...], int, int], ...]


class Place(NamedTuple):
    """Where a tensor lies; offset and stride count elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    window: int
    offset: int


class Window(NamedTuple):
    """Part of a storage: where it lies in the memory, and of how many bytes it is."""

    at: int
    nbytes: int


class Layout(NamedTuple):
    """Where tensors of one signature go.

    Attributes:
        nbytes: how much memory they take.
        starts: the byte at which each window begins in its storage.
    """

    places: list[Place]
    windows: list[Window]
    starts: list[int]
    nbytes: int


def signed(tensors: Sequence[object]) -> tuple[Signature, list[int]] | None:
    """Return what the layout of *tensors* depends on, and the addresses of their storages.

    Returns:
        ``None`` where one is not plain: no tensor, not on the CPU, with a gradient, attributes, ...
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kind, strided = torch.Tensor, torch.strided
    numbers: dict[int, int] = {}
    signature: list[Any] = []
    for each in cast("Sequence[Tensor]", tensors):
        if (
            type(each) is not kind
            or each.requires_grad
            or not each.is_cpu
            or each.layout is not strided
            or each.is_nested
            or each.is_quantized
            or each.is_conj()
            or each.is_neg()
            or each.__dict__
        ):
            return None
        number = numbers.setdefault(each.untyped_storage().data_ptr(), len(numbers))
        signature.append((each.dtype, each.shape, each.stride(), each.storage_offset(), number))
    return tuple(signature), list(numbers)


def laid_out(signature: Signature) -> Layout | None:
    """Return where tensors of *signature* go; ``None`` where one is mostly gaps."""
    spans: dict[int, tuple[int, int]] = {}
    elements: Counter[int] = Counter()
    for dtype, shape, stride, offset, number in signature:
        low, high = spans.get(number, (sys.maxsize, 0))
        if numel := math.prod(shape):
            last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
            low = min(low, offset * dtype.itemsize // ELEMENT * ELEMENT)
            high = max(high, (last + 1) * dtype.itemsize)
            elements[number] += numel * dtype.itemsize
        spans[number] = low, high
    windows, starts, end = [], [], 0
    for number, (low, high) in spans.items():
        nbytes = max(high - low, 0)
        if nbytes > _GAPS * elements[number] + ELEMENT:
            return None
        windows.append(Window(end, nbytes))
        starts.append(low)
        end += -(-nbytes // _ALIGN) * _ALIGN
    return Layout(list(_places(signature, starts)), windows, starts, end)


def rebuilt(
    memory: memoryview, places: Sequence[Sequence[Any]], windows: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Return the tensors that lie in *memory*, over it."""
    import torch

    told = [Place(*each) for each in places]
    uses = Counter(each.window for each in told)
    storages: dict[int, torch.UntypedStorage] = {}
    tensors = []
    for place in told:
        dtype = getattr(torch, place.dtype)
        shape, stride = tuple(place.shape), tuple(place.stride)
        at, nbytes = windows[place.window]
        count = math.prod(shape)
        if not count:
            tensors.append(torch.empty_strided(shape, stride, dtype=dtype))
        elif uses[place.window] == 1 and count * dtype.itemsize == nbytes:
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=at)
            tensors.append(flat if len(shape) == 1 else flat.as_strided(shape, stride))
        else:
            storage = storages.get(place.window)
            if storage is None:
                whole = torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=at)
                storage = storages[place.window] = whole.untyped_storage()
            empty = torch.empty(0, dtype=dtype)
            tensors.append(empty.set_(cast("Any", storage), place.offset, shape, stride))
    return tensors


class Run(NamedTuple):
    """A tensor that lies in one piece: where that begins, how long it is, and of what."""

    at: int
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]


def runs(places: Sequence[Sequence[Any]], windows: Sequence[Sequence[int]]) -> list[Run] | None:
    """Return the tensors that lie in memory; ``None`` if one does not lie in one piece."""
    import torch

    found = []
    for place in (Place(*each) for each in places):
        dtype, shape = getattr(torch, place.dtype), tuple(place.shape)
        if not torch.empty_strided(shape, place.stride, device="meta").is_contiguous():
            return None
        at = windows[place.window][0] + place.offset * dtype.itemsize
        found.append(Run(at, math.prod(shape) * dtype.itemsize, dtype, shape))
    return found


def fit(targets: Sequence[object], to: Sequence[Run]) -> bool:
    """Return whether *targets* are plain tensors in one piece each, of these shapes and dtypes."""
    torch = sys.modules["torch"]
    plain = {torch.Tensor, torch.nn.Parameter}
    return len(targets) == len(to) and all(
        type(target) in plain
        and target.dtype is run.dtype
        and lies_in_one_run(target)  # first: not all other tensors have a shape
        and target.shape == run.shape
        and (not run.nbytes or target.data_ptr())  # 0: its memory was freed
        for target, run in zip(cast("Sequence[Tensor]", targets), to, strict=True)
    )


def changed(tensors: Iterable[Tensor]) -> None:
    """Tell autograd of tensors that were written to without torch."""
    import torch

    for each in tensors:
        torch.autograd.graph.increment_version(each)


def _places(signature: Signature, starts: Sequence[int]) -> Iterator[Place]:
    for dtype, shape, stride, offset, number in signature:
        name = str(dtype).removeprefix("torch.")
        inside = offset - starts[number] // dtype.itemsize if math.prod(shape) else 0
        yield Place(name, tuple(shape), stride, number, inside)
