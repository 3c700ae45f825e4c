"""What a member that trains does in a round, however the gradients are averaged.

All begin with the same parameters, each has other gradients, and the optimizer takes plain steps,
so that everybody knows what must come out, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import Module, Parameter, ParameterList
from torch.optim import SGD
from typing_extensions import override

from benchmarks.crews import Part
from benchmarks.harness import Samples

TENSORS = 60
MEMBERS = 4
PRELOAD = ("torch._dynamo",)  #: what the first optimizer of a process imports


class Trainer(NamedTuple):
    """One of the members.

    Attributes:
        rank: its number among them.
        model: its model, with room for its gradients in ``grad``.
        round: hands in the gradients and returns when `model` has the new parameters.
    """

    rank: int
    model: Module
    round: Callable[[], None]


class Rounds(Part):
    """Hands in gradients and waits for the parameters that come of them; and does so again."""

    def __init__(self, rounds: int, trainer: Trainer) -> None:
        self.tasks = rounds
        self._trainer = trainer
        self._gradients = [each.grad for each in trainer.model.parameters()]
        self._expected = 0.0

    @override
    def prepare(self, number: int) -> None:
        unit = float(number % 7 + 1)
        for index, gradient in enumerate(self._gradients):
            assert gradient is not None
            gradient.fill_(unit * (self._trainer.rank + 1) * (index + 1))
        # Also where the mean has taken the gradients' place: the mean of that is the same.
        self._expected -= self.tasks * unit * sum(range(1, MEMBERS + 1)) / MEMBERS

    @override
    def run(self) -> Samples:
        for _ in range(self.tasks):
            parameters = self._trainer.model.parameters()
            for parameter, gradient in zip(parameters, self._gradients, strict=True):
                parameter.grad = gradient  # as after a backward pass: a reducer clears it
            self._trainer.round()
        return {}

    @override
    def check(self) -> bool:
        return all(
            bool((parameter == self._expected * (index + 1)).all())
            for index, parameter in enumerate(self._trainer.model.parameters())
        )


def model(megabytes: int, gradients: bool = True) -> Module:
    """Return a model of so many megabytes, all zeros, if asked for with gradients."""
    size = (megabytes << 20) // 4 // TENSORS
    found = ParameterList([Parameter(torch.zeros(size)) for _ in range(TENSORS)])
    for each in found if gradients else ():
        each.grad = torch.zeros(size)
    return found


def optimizer(of: Module) -> SGD:
    """Return the optimizer that steps it."""
    return SGD(of.parameters(), lr=1.0)
