"""Find the gradients of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Parameter


def gradient(name: str, parameter: Parameter) -> Tensor:
    """Return the dense gradient of *parameter*.

    Raises:
        ValueError: it has none.
    """
    if parameter.grad is None:
        message = (
            f"parameter {name!r} has no gradient: call backward() on a loss that depends on it"
            " before push() or step(), or freeze it with requires_grad_(False) before start()"
        )
        raise ValueError(message)
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad


def gradients(parameters: Iterable[tuple[str, Parameter]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and gradients of those named *parameters* that are trainable.

    Raises:
        ValueError: one has no gradient.
    """
    for name, each in parameters:
        if each.requires_grad:
            yield name, gradient(name, each)


def clear(parameters: Iterable[Parameter]) -> None:
    """Set the gradients to None."""
    for parameter in parameters:
        parameter.grad = None


def averages(dtype: torch.dtype) -> bool:
    """Return whether a mean of several is of the same dtype."""
    return dtype.is_floating_point or dtype.is_complex


def first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first gradient that holds NaN or infinity, None if there is none."""
    import torch

    for name, each in named:
        # The sum reads the tensor once and writes nothing. It may itself overflow.
        if not torch.isfinite(each.sum()) and not torch.isfinite(each).all():
            return name
    return None
