"""What each member does in a round, however gradients become their mean."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn import Module, Parameter, ParameterList
from torch.optim import SGD, Optimizer
from typing_extensions import override

from benchmarks.crews import Part
from benchmarks.harness import Samples

TENSORS = 60
MEMBERS = 4
PRELOAD = ("torch._dynamo",)  #: what the first optimizer of a process imports


# -- gradients become their mean -------------------------------------------------------------------


class Averager(NamedTuple):
    """One of the members.

    Attributes:
        rank: its number.
        parameters: of a model; their gradients are to become the mean of all members'.
        average: does that, and returns the means, which nobody else holds then.
    """

    rank: int
    parameters: Sequence[Parameter]
    average: Callable[[], list[Tensor]]


class Averages(Part):
    """Makes the means of known gradients, again and again; no optimizer steps.

    Each round has gradients of its own, which nobody but the parameters holds, as a backward pass
    makes them.
    """

    def __init__(self, rounds: int, averager: Averager) -> None:
        self.tasks = rounds
        self._averager = averager
        self._gradients: list[list[Tensor]] = []
        self._means: list[Tensor] = []
        self._unit = 0.0

    @override
    def prepare(self, number: int) -> None:
        self._unit = float(number % 7 + 1)
        self._means = []
        for _ in range(self.tasks):
            factors = enumerate(self._averager.parameters, 1)
            unit = self._unit * (self._averager.rank + 1)
            self._gradients.append([torch.full_like(each, unit * f) for f, each in factors])

    @override
    def run(self) -> Samples:
        for _ in range(self.tasks):
            gradients = self._gradients.pop()
            for parameter in reversed(self._averager.parameters):
                parameter.grad = gradients.pop()
            self._means = self._averager.average()
        return {}

    @override
    def check(self) -> bool:
        mean = self._unit * sum(range(1, MEMBERS + 1)) / MEMBERS
        return len(self._means) == TENSORS and all(
            bool((each == mean * factor).all()) for factor, each in enumerate(self._means, 1)
        )


class Keeping(Optimizer):
    """Keeps the gradients that it is to step on, and changes the parameters in no other way.

    As every optimizer that computes in place, it counts a version of each parameter.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(parameters, {})
        self._parameters = parameters
        self.kept: list[Tensor] = []

    @override
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.kept = [each.grad for each in self._parameters if each.grad is not None]
        increment_version(self._parameters)


def parameters(megabytes: int) -> ParameterList:
    """Return 60 parameters of so many megabytes together."""
    size = (megabytes << 20) // 4 // TENSORS
    return ParameterList([Parameter(torch.zeros(size)) for _ in range(TENSORS)])


# -- whole steps -----------------------------------------------------------------------------------


class Trainer(NamedTuple):
    """One of the members.

    Attributes:
        rank: its number.
        forward: computes the outputs of its model.
        step: makes a step of the gradients that ``backward()`` has left; all models are then alike.
        parameters: of its model.
        gathered: returns the numbers that all members hand in.
    """

    rank: int
    forward: Callable[[Tensor], Tensor]
    step: Callable[[], object]
    parameters: Sequence[Parameter]
    gathered: Callable[[float], Sequence[float]]


class Steps(Part):
    """Trains on batches: forward, backward and the step."""

    def __init__(self, steps: int, trainer: Trainer) -> None:
        self.tasks = steps
        self._trainer = trainer
        self._batches: list[Tensor] = []

    @override
    def prepare(self, number: int) -> None:
        random = torch.Generator().manual_seed(MEMBERS * number + self._trainer.rank)
        self._batches = [torch.randn(BATCH, WIDTH, generator=random) for _ in range(self.tasks)]

    @override
    def run(self) -> Samples:
        for batch in self._batches:
            self._trainer.forward(batch).square().mean().backward()
            self._trainer.step()
        return {}

    @override
    def check(self) -> bool:
        total = sum(float(each.detach().double().sum()) for each in self._trainer.parameters)
        return len(set(self._trainer.gathered(total))) == 1


BATCH, WIDTH, HIDDEN = 32, 512, 2048


def network(layers: int) -> Module:
    """Return a network, the same in all processes; with one hidden layer more, of 16 MB more."""
    random = torch.Generator().manual_seed(0)
    widths = [WIDTH, *[HIDDEN] * layers, WIDTH]
    made: list[Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        made += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*made[:-1])
    for each in model.parameters():
        nn.init.uniform_(each, -0.02, 0.02, generator=random)
    return model


def optimizer(of: Module) -> SGD:
    """Return the optimizer that steps it."""
    return SGD(of.parameters(), lr=0.01, momentum=0.9)
