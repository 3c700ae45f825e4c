"""What is left to do when one of torch's libraries has done an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Finish = Callable[[], None]


def back(buffer: Tensor, tensor: Tensor) -> Finish | None:
    """Return what gives *tensor* what came into its stand-in, if it has one."""
    if buffer is tensor:
        return None

    def copy() -> None:
        tensor.copy_(buffer)

    return copy


def all_back(buffers: Sequence[Tensor], tensors: Sequence[Tensor]) -> Finish | None:
    """As :func:`back`, for several."""
    return each_of([back(*each) for each in zip(buffers, tensors, strict=True)])


def each_of(steps: Sequence[Finish | None]) -> Finish | None:
    """Return one step that does all those that there are."""
    wanted = [each for each in steps if each is not None]
    if not wanted:
        return None

    def run() -> None:
        for each in wanted:
            each()

    return run
