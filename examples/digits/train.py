"""Train a small network on handwritten digits, with whatever members and backends a config names.

The program is written against pparallel's interfaces only: the config says whether its members
are threads, processes or machines, and how they share what they learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

if TYPE_CHECKING:
    from pparallel import Runtime

HELD_OUT = 4  #: one image in so many is kept for the test


def main(
    rt: Runtime, *, steps: int = 400, batch_size: int = 64, lr: float = 5e-3
) -> dict[str, float] | None:
    """Train with the other members; return the accuracy on held-out images where rank is 0.

    Args:
        rt: this member's runtime.
        steps: how many batches each member that trains works through.
        batch_size: images in a batch.
        lr: learning rate.
    """
    torch.set_num_threads(1)  # so little work is done sooner by one core than shared by several
    (images, labels), held_out = digits()
    reducer, random = rt.reducer, rt.streams.torch
    model = network(random)

    if reducer.manages:
        reducer.manage_model(model, torch.optim.Adam(model.parameters(), lr=lr))
    reducer.start()
    reducer.pull(model)  # all begin at the same parameters
    if reducer.trains:
        for step in range(steps):
            batch = torch.randint(len(images), (batch_size,), generator=random)
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            reducer.step(model)
            if step % 50 == 49:
                rt.report(step=step + 1, loss=loss.item())
    reducer.stop()
    return {"accuracy": accuracy(model, *held_out)} if rt.rank == 0 else None


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return images [n, 64] and labels [n] to train on, and those held out: always the same."""
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, rest = order[: len(order) // HELD_OUT], order[len(order) // HELD_OUT :]
    return (images[rest], labels[rest]), (images[held_out], labels[held_out])


def network(random: torch.Generator) -> nn.Module:
    """Return an untrained network from 64 pixels to 10 digits, its weights drawn from *random*."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_uniform_(parameter, nonlinearity="relu", generator=random)
        else:
            nn.init.zeros_(parameter)
    return model


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of *images* that *model* reads right."""
    return float((model(images).argmax(1) == labels).float().mean())
