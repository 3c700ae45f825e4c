"""The outer parameters, and the step that moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pparallel_reducers.diloco.weights import Weights
from pparallel_reducers.gradients import averages

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Outer:
    """Steps the outer parameters by Nesterov momentum on how far the members came from them.

    Tensors are replaced, never changed: whoever still sends them sends what they were.

    Attributes:
        weights: the outer parameters, and the mean of the members' buffers.

    Source: DiLoCo, Douillard et al., arXiv 2311.08105.
    """

    def __init__(self, weights: Weights, lr: float, momentum: float) -> None:
        self.weights = weights
        self._lr = lr
        self._momentum = momentum
        self._velocity: dict[torch.dtype, Tensor] = {}

    def step(self, parts: Sequence[Weights], *, last: bool) -> None:
        """Step towards *parts*; if it is the *last* step, to their mean itself.

        Momentum is for steps that others follow.
        """
        plain = last or (self._lr == 1 and self._momentum == 0)
        trainable = {}
        for dtype, before in self.weights.trainable.items():
            mean = _mean([part.trainable[dtype] for part in parts])
            trainable[dtype] = (mean if plain else self._nesterov(before, mean)).to(dtype)
        buffers = {
            dtype: _mean([part.buffers[dtype] for part in parts]).to(dtype)
            for dtype in self.weights.buffers
        }
        self.weights = Weights(trainable, buffers)

    def _nesterov(self, before: Tensor, mean: Tensor) -> Tensor:
        gradient = before.to(mean.dtype) - mean
        velocity = self._velocity.get(before.dtype)
        velocity = gradient if velocity is None else self._momentum * velocity + gradient
        self._velocity[before.dtype] = velocity
        return before.to(mean.dtype) - self._lr * (gradient + self._momentum * velocity)


def _mean(flats: Sequence[Tensor]) -> Tensor:
    """Return the mean, in float32 at least; of what cannot be averaged, the last."""
    import torch

    dtype = flats[0].dtype
    if not averages(dtype):
        return flats[-1]
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    total = flats[0].to(wide)
    for each in flats[1:]:
        total = total + each.to(wide)
    return total / len(flats)
