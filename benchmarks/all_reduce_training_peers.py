"""Torch's own ways to make means of gradients, on gloo, each as its documentation has it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from benchmarks.all_reduce_training_parts import (
    MEMBERS,
    PRELOAD,
    Averager,
    Trainer,
    network,
    optimizer,
    parameters,
)
from benchmarks.crews import Crew, crew

Reduce = Callable[[Sequence[Parameter]], None]


@contextmanager
def averagers(reduce: Reduce, megabytes: int) -> Iterator[Crew]:
    """Give four processes that make means by *reduce*."""
    with _processes(partial(_averager, reduce), megabytes) as found:
        yield found


def coalesced(trained: Sequence[Parameter]) -> None:
    """Make the means by one call."""
    gradients = [each.grad for each in trained if each.grad is not None]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.distributed.all_reduce_coalesced`")
        distributed.all_reduce_coalesced(gradients)
    torch._foreach_div_(gradients, MEMBERS)


def one_by_one(trained: Sequence[Parameter]) -> None:
    """Make the mean of each gradient by a call of its own."""
    for each in trained:
        assert each.grad is not None
        distributed.all_reduce(each.grad)
        each.grad.div_(MEMBERS)


@contextmanager
def data_parallel(layers: int) -> Iterator[Crew]:
    """Give four processes that train by DistributedDataParallel, with its defaults."""
    with _processes(_trainer, layers) as found:
        yield found


@contextmanager
def _processes(opened: Any, size: int) -> Iterator[Crew]:
    with TemporaryDirectory() as folder:
        openings = [partial(_joined, opened, folder, rank, size) for rank in range(MEMBERS)]
        with crew(openings, preload=PRELOAD) as found:
            yield found


@contextmanager
def _joined(opened: Callable[[int, int], Any], folder: str, rank: int, size: int) -> Iterator[Any]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=MEMBERS
    )
    yield opened(rank, size)
    distributed.barrier()
    distributed.destroy_process_group()


def _averager(reduce: Reduce, rank: int, megabytes: int) -> Averager:
    trained = list(parameters(megabytes))

    def average() -> list[Any]:
        reduce(trained)
        return [each.grad for each in trained]

    return Averager(rank, trained, average)


def _trainer(rank: int, layers: int) -> Trainer:
    model = DistributedDataParallel(network(layers))
    stepping = optimizer(model)

    def step() -> None:
        stepping.step()
        stepping.zero_grad()

    return Trainer(rank, model, step, list(model.parameters()), _gathered)


def _gathered(value: float) -> list[float]:
    found = [0.0] * MEMBERS
    distributed.all_gather_object(found, value)
    return found
