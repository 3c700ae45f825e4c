"""Models and batches of the training suite; the same for the same seed, in every process.

torch's own random numbers are those of the whole process, and members may be threads of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

if TYPE_CHECKING:
    from torch import Tensor

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)

SHAPE = (6, 3)  #: of a batch of the small network


def seeded(model: M, seed: int = 0) -> M:
    """Fill the parameters of *model* with values that *seed* gives, and return it."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.rand(each.shape, generator=random) - 0.5)
    return model


def batch(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return a batch of numbers between 0 and 1."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def perceptron() -> nn.Sequential:
    """Return a network of two layers."""
    return seeded(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.second(torch.tanh(self.first(inputs)))
        return output


class Cached(nn.Module):
    """A layer under two names, with buffers that are not persistent.

    ``cache`` has another size for each batch, ``seen`` adds up the inputs.
    """

    cache: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.first.register_buffer("cache", torch.zeros(1), persistent=False)
        self.first.register_buffer("seen", torch.zeros(3), persistent=False)
        self.second = self.first

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        self.first.cache = inputs.new_zeros(len(inputs))
        self.first.get_buffer("seen").add_(inputs.detach().sum(0))
        output: Tensor = self.second(torch.tanh(self.first(inputs)))
        return output


class Adapted(nn.Module):
    """A frozen network, to whose output a trained one adds."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = perceptron().requires_grad_(False), perceptron()

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.base(inputs) + self.adapter(inputs)
        return output


class Normalized(nn.Module):
    """A network with running means and variances."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.norm(self.first(inputs))))
        return output


class Counting(nn.Module):
    """A network with a counter and an average of a bias, for a hook to write."""

    steps: Tensor
    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron()
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("average", torch.zeros(2))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.net(inputs)
        return output

    def count(self, *_: object) -> None:
        """Count a step, as a hook of the optimizer."""
        self.steps += 1
        self.average.lerp_(self.net[2].get_parameter("bias").detach(), 0.5)


class Renamed(Normalized):
    """A model that gives its state other names, as of a published format."""

    @override
    def state_dict(self, *args: Any, **options: Any) -> Any:
        state = super().state_dict(*args, **options)
        return {f"published/{name}": each for name, each in state.items()}

    @override
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        own = {name.removeprefix("published/"): each for name, each in state_dict.items()}
        return super().load_state_dict(own, strict, assign)


class Masked(nn.Module):
    """A layer behind a causal mask, a persistent buffer in which -inf stands for "not seen"."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(3, 3)
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.scores(inputs[:3]) + self.mask
        return torch.softmax(scores, dim=-1) @ inputs[:3]


class Extended(nn.Module):
    """A network that may be given a further parameter."""

    gain: nn.Parameter | None

    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron()
        self.register_parameter("gain", None)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.net(inputs)
        return output if self.gain is None else output * self.gain


class PartlyUsed(nn.Module):
    """A network with a parameter that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron()
        self.unused = nn.Parameter(torch.zeros(2))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.net(inputs)
        return output


class Heads(nn.Module):
    """A network with two heads, of which a batch goes through one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

    @override
    def forward(self, inputs: Tensor, used: int) -> Tensor:
        output: Tensor = self.heads[used](torch.tanh(self.body(inputs)))
        return output


class Gated(nn.Module):
    """A layer behind a gate that is zero at first, and so is the first gradient of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(6, 6, bias=False), nn.Parameter(torch.zeros(6))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs) * self.gate
        return output


class Words(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(8, 3, sparse=True)

    @override
    def forward(self, indices: Tensor) -> Tensor:
        output: Tensor = self.rows(indices)
        return output


class Single(nn.Module):
    """One parameter of three elements, whose gradient is the input."""

    def __init__(self, dtype: torch.dtype, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), value, dtype=dtype))

    @override
    def forward(self, gradient: Tensor) -> Tensor:
        return ((self.weight - self.weight.detach()) * gradient).sum()


class Complex(nn.Module):
    """A matrix of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        real, imaginary = batch((3, 2), 1) - 0.5, batch((3, 2), 2) - 0.5
        self.weight = nn.Parameter(torch.complex(real, imaginary))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.to(self.weight.dtype) @ self.weight
