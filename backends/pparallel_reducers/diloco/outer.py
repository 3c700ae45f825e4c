"""The outer parameters, and the step that moves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pparallel_reducers.diloco.weights import Weights, wide_dtype
from pparallel_reducers.gradients import averages
from pparallel_reducers.layout import Flats, Layout

if TYPE_CHECKING:
    from torch import Tensor


class OuterState(NamedTuple):
    """The outer parameters after some round; its tensors are replaced, never changed.

    Attributes:
        version: how many rounds have moved them.
        weights: what members go on from: the outer parameters, rounded to the dtypes of the model,
            and the mean of the members' buffers.
        parameters: the trainable parameters, by the dtype of the model, in float32 at least: in two
            bytes most outer steps would be rounded away.
        momentum: the velocity of each of them; empty before the first step that uses it.
    """

    version: int
    weights: Weights
    parameters: Flats
    momentum: Flats

    @classmethod
    def of(cls, weights: Weights, version: int) -> OuterState:
        """Return the state in which a run begins with *weights*."""
        parameters = {
            dtype: flat.to(wide_dtype(dtype)) for dtype, flat in weights.trainable.items()
        }
        return cls(version, weights, parameters, {})

    @classmethod
    def loaded(cls, state: Mapping[str, Any], layout: Layout, weights: Weights) -> OuterState:
        """Return what :meth:`state_dict` has returned as *state*, for a model that has *weights*.

        Raises:
            ValueError: *state* is of another model, or of other parameters than *weights*.
        """
        parameters = _packed(layout, state["parameters"])
        for dtype, flat in parameters.items():
            if not same_bits(flat.to(dtype), weights.trainable[dtype]):
                message = (
                    "the outer parameters in the reducer's state are not those of the model: load"
                    " the model's state_dict() that was saved with it, before start()"
                )
                raise ValueError(message)
        momentum = _packed(layout, state["momentum"]) if state["momentum"] else {}
        return cls(int(state["version"]), weights, parameters, momentum)

    def state_dict(self, layout: Layout) -> dict[str, Any]:
        """Return what :meth:`loaded` needs beside the model, as plain data of its own."""
        return {
            "version": self.version,
            "parameters": _by_name(layout, self.parameters),
            "momentum": _by_name(layout, self.momentum) if self.momentum else {},
        }


class Outer:
    """Steps the outer parameters by Nesterov momentum on how far the members came from them.

    Attributes:
        state: the outer parameters, and their version.

    Source: DiLoCo, Douillard et al., arXiv 2311.08105.
    """

    def __init__(self, state: OuterState, lr: float, momentum: float) -> None:
        self.state = state
        self._lr = lr
        self._momentum = momentum

    def step(self, parts: Sequence[Weights], *, last: bool) -> None:
        """Step towards *parts*; if it is the *last* step, to their mean itself.

        Momentum is for steps that others follow.
        """
        version, weights, parameters, momentum = self.state
        means = {dtype: _mean([part.trainable[dtype] for part in parts]) for dtype in parameters}
        if not last and (self._lr != 1 or self._momentum != 0):
            means, momentum = self._nesterov(means)
        trainable = {dtype: flat.to(dtype) for dtype, flat in means.items()}
        buffers = {
            dtype: _mean([part.buffers[dtype] for part in parts]).to(dtype)
            if averages(dtype)
            else parts[-1].buffers[dtype]
            for dtype in weights.buffers
        }
        self.state = OuterState(version + 1, Weights(trainable, buffers), means, momentum)

    def _nesterov(self, means: Flats) -> tuple[Flats, Flats]:
        """Return the next parameters and velocities.

        The gradient is taken from what the members began with, which is rounded: what rounding has
        left out is not theirs, and stays in the parameters.
        """
        _, weights, parameters, momentum = self.state
        moved, velocities = {}, {}
        for dtype, mean in means.items():
            gradient = weights.trainable[dtype].to(mean.dtype) - mean
            velocity = gradient
            if dtype in momentum:
                velocity = self._momentum * momentum[dtype] + gradient
            velocities[dtype] = velocity
            moved[dtype] = parameters[dtype] - self._lr * (gradient + self._momentum * velocity)
        return moved, velocities


def _mean(flats: Sequence[Tensor]) -> Tensor:
    """Return the mean, in float32 at least."""
    total = flats[0].to(wide_dtype(flats[0].dtype))
    for each in flats[1:]:
        total = total + each.to(total.dtype)
    mean = total / len(flats)
    if not mean.isfinite().all():
        _mend(mean, flats)
    return mean


def _mend(mean: Tensor, flats: Sequence[Tensor]) -> None:
    """Compute *mean* anew where a sum was out of range, as that of the smallest numbers is.

    Masks are made of such numbers, or of -inf, which stays.
    """
    import torch

    places = ~mean.isfinite()
    deep = torch.complex128 if mean.is_complex() else torch.float64
    parts = torch.stack([each.to(mean.dtype)[places].to(deep) / len(flats) for each in flats])
    mean[places] = parts.sum(0).to(mean.dtype)


def _by_name(layout: Layout, flats: Flats) -> dict[str, Tensor]:
    return {name: view.clone() for name, view in layout.gradients.views(flats)}


def _packed(layout: Layout, named: Mapping[str, Tensor]) -> Flats:
    """Return flat tensors of *named* ones, which have the names and shapes of *layout*.

    Raises:
        ValueError: they have others.
    """
    import torch

    sizes = layout.gradients.sizes
    flats = {dtype: torch.empty(size, dtype=wide_dtype(dtype)) for dtype, size in sizes.items()}
    views = dict(layout.gradients.views(flats))
    for name in (*views, *named):
        own, given = (_described(each.get(name)) for each in (views, named))
        if own != given:
            message = (
                f"the reducer's state is of another model: its outer parameter {name!r} is"
                f" {given}, and that of the model {own}"
            )
            raise ValueError(message)
        views[name].copy_(named[name])
    return flats


def _described(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two flat tensors of one dtype are the same, NaN included."""
    import torch

    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
