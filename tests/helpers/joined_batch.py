"""What synchronous training comes to: training in one process on what all members draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]  #: inputs and labels


def loss_of(model: nn.Module, rows: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss on a batch."""
    return nn.functional.cross_entropy(model(rows), labels)


def train_on_joined(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Sequence[Batch]],
    weight: float = 1.0,
) -> list[Tensor]:
    """Step once on each of *batches*, which the members' are joined to; return the parameters.

    Args:
        model: what is trained.
        optimizer: what steps it.
        batches: for each step, what each member has.
        weight: times which each gradient is, as where they are summed and not averaged.
    """
    for each in batches:
        rows, labels = (torch.cat(part) for part in zip(*each, strict=True))
        optimizer.zero_grad()
        (weight * loss_of(model, rows, labels)).backward()
        optimizer.step()
    return tensors(model)


def tensors(model: nn.Module) -> list[Tensor]:
    """Return the parameters of *model*."""
    return [each.detach() for each in model.parameters()]


def check_alike(
    members: Sequence[Sequence[Tensor]],
    expected: Sequence[Tensor],
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Check that all members have the same parameters, which are about those *expected*."""
    for trained in members:
        assert all(map(torch.equal, trained, members[0])), "not bit for bit the same"
        torch.testing.assert_close(list(trained), list(expected), rtol=rtol, atol=atol)
