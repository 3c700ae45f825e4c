"""Tensors of one operation that share memory: refused among outputs, copied among inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from pparallel.machine.copying import elements_overlap

if TYPE_CHECKING:
    from torch import Tensor


def separate(what: str, outputs: list[Tensor]) -> list[Tensor]:
    """Return *outputs*, none of which shares memory with another.

    Raises:
        ValueError: two do: each element could keep one of two values only.
    """
    if share_memory(outputs):
        pairs = combinations(enumerate(outputs), 2)
        at, other = next((i, j) for (i, one), (j, two) in pairs if share_memory([one, two]))
        raise ValueError(
            f"entries {at} and {other} of {what} share memory, and cannot both be filled: give"
            " each a tensor of its own, as torch.empty_like() makes"
        )
    return outputs


def copied_if_shared(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], own: tuple[int, int]
) -> list[Tensor]:
    """Return *inputs*, with copies of those whose memory is written to before all have read them.

    Args:
        inputs: the tensors that are sent.
        outputs: the tensors that are filled, each apart from the others.
        own: (input index, output index) that may be the same tensor.
    """
    spans = [_span(each) for each in outputs]
    found = list(inputs)
    for at, each in enumerate(inputs):
        start, end = _span(each)
        for number, (first, last) in enumerate(spans):
            if start < last and first < end and share_memory([each, outputs[number]]):
                if (at, number) == own and _is_same(each, outputs[number]):
                    continue
                found[at] = each.clone()
                break
    return found


def share_memory(tensors: Sequence[Tensor]) -> bool:
    """Return whether an element of one of *tensors* lies where one of another does."""
    spans = sorted([(*_span(each), at) for at, each in enumerate(tensors)])
    if not any(span[1] > after[0] for span, after in pairwise(spans)):
        return False
    near: list[Tensor] = []  # tensors whose address ranges overlap; they may be interleaved
    high = 0
    for start, end, at in spans:
        if start >= high:
            if _collide(near):
                return True
            near = []
        if start < end:
            near.append(tensors[at])
            high = max(high, end)
    return _collide(near)


def overlaps_itself(tensor: Tensor) -> bool:
    """Return whether elements of a strided tensor share memory, as after ``expand()``."""
    return not tensor.is_contiguous() and elements_overlap(tensor.shape, tensor.stride())


def _collide(near: Sequence[Tensor]) -> bool:
    """Return whether elements of tensors, whose addresses make one range, share bytes."""
    import torch

    if len(near) < 2 or all(each.is_contiguous() for each in near):
        return len(near) > 1
    for dimension, steps in enumerate(zip(*map(_steps, near), strict=False)):
        if len(set(steps)) == 1:
            layers = [each.select(dimension, 0) for each in near]
            low, high = _bounds(layers)
            if steps[0][1] >= high - low:  # the next layers lie behind these, in the same way
                return share_memory(layers)
    low, high = _bounds(near)
    starts = [each.data_ptr() - low for each in near]
    unit = math.gcd(*starts, *(each.itemsize for each in near))  # of bytes
    used = torch.zeros((high - low) // unit, dtype=torch.bool, device="cpu")
    for start, each in zip(starts, near, strict=True):
        size = each.itemsize // unit
        strides = [*(size * stride for stride in each.stride()), 1]
        place = used.as_strided([*each.shape, size], strides, start // unit)
        if place.any():
            return True
        place.fill_(True)
    return False


def _steps(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Return the length of each dimension, and the bytes from one element to the next."""
    strides = (stride * tensor.itemsize for stride in tensor.stride())
    return zip(tensor.shape, strides, strict=True)


def _bounds(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Return the addresses between which the elements of all of *tensors* lie."""
    starts, ends = zip(*map(_span, tensors), strict=True)
    return min(starts), max(ends)


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses between which the elements of *tensor* lie; twice 0 for none."""
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # a subclass without memory of its own
        return 0, 0
    if tensor.is_contiguous():
        return start, start + tensor.nbytes if start else 0
    if not start or not tensor.numel():
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((length - 1) * stride for length, stride in steps)
    return start, start + (last + 1) * tensor.itemsize


def _is_same(one: Tensor, other: Tensor) -> bool:
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.is_conj() == other.is_conj()
        and one.is_neg() == other.is_neg()
    )
