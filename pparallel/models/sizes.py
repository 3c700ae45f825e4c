"""How much memory a model needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pparallel.models.running import Sample, run
from pparallel.models.tensors import held_bytes, tensors_in

if TYPE_CHECKING:
    import torch
    from torch import nn

MB = 2**20


class ModelSizeEstimator:
    """Estimates how much memory a model needs, in MB (2**20 bytes).

    Parameters and buffers of every dtype count, on every device, ``meta`` included, where they
    take no memory yet. Memory that several share counts once, be it one parameter under two names
    or two views of one storage. Wrappers (quantised or sharded tensors) count what they hold here,
    sparse tensors their indices and values, nested ones their parts and, where they are jagged,
    the offsets.

    Args:
        model: the model, which is left as it is.
        size_multiplier: how many times its parameters and buffers it needs; 2 leaves room for
            gradients.

    Raises:
        ValueError: a parameter has no shape yet (``torch.nn.LazyLinear`` and its like), or
            *size_multiplier* is not above 0.

    Source: ``ModelSizeEstimator`` of machin (iffiX/machin, ``machin/parallel/assigner.py``).
    """

    def __init__(self, model: nn.Module, size_multiplier: float = 2) -> None:
        if not 0 < size_multiplier < float("inf"):
            message = f"size_multiplier is {size_multiplier!r}; give a finite number above 0"
            raise ValueError(message)
        self.model, self.size_multiplier = model, size_multiplier
        _refuse_lazy_ones(model)

    def get_parameter_sizes(self) -> float:
        """Return the size of the parameters in MB."""
        return held_bytes(self.model.parameters()) / MB

    def get_buffer_sizes(self) -> float:
        """Return the size of the buffers in MB, and of weights that modules hold packed."""
        return held_bytes(self._buffers()) / MB

    def get_activation_sizes(self, sample: Sample, **kwargs: object) -> float:
        """Return in MB what autograd keeps of one forward pass for the backward pass.

        The pass is run once, as in evaluation, with gradients on. What it keeps of the parameters
        and buffers themselves does not count.

        Args:
            sample: what the model is called with: a tuple holds the positional arguments, and
                anything else is the only one.
            **kwargs: its keyword arguments.
        """
        import torch

        kept: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor.detach())
            return tensor

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda it: it):
            run(self.model, [self.model], sample, kwargs)
        own = [*self.model.parameters(), *self._buffers()]
        return (held_bytes([*own, *kept]) - held_bytes(own)) / MB

    def estimate_size(self, sample: Sample = None, **kwargs: object) -> float:
        """Return what the model needs in MB: parameters and buffers, times the multiplier.

        Args:
            sample: if given, what autograd keeps of a forward pass with it is added, as it is.
            **kwargs: keyword arguments of that pass.
        """
        tensors = itertools.chain(self.model.parameters(), self._buffers())
        size = held_bytes(tensors) / MB * self.size_multiplier
        if sample is None and not kwargs:
            return size
        return size + self.get_activation_sizes(sample, **kwargs)

    def _buffers(self) -> Iterator[torch.Tensor]:
        yield from self.model.buffers()
        for module in self.model.modules():
            yield from _packed(module)


def _packed(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield what a quantised module holds outside its parameters and buffers."""
    import torch

    unpack = getattr(module, "_weight_bias", None)
    if callable(unpack) and not isinstance(
        getattr(module, "_packed_params", None),
        torch.nn.Module,  # which is asked by itself
    ):
        yield from tensors_in(unpack())


def _refuse_lazy_ones(model: nn.Module) -> None:
    from torch.nn.parameter import is_lazy

    lazy = [
        name
        for name, each in itertools.chain(model.named_parameters(), model.named_buffers())
        if is_lazy(each)
    ]
    if lazy:
        message = (
            f"{type(model).__name__} has no shape yet for {', '.join(lazy)}; call it once with a"
            " sample first"
        )
        raise ValueError(message)
