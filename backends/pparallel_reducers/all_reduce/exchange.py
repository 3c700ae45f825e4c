"""Combine gradients after the backward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.interfaces.collective import ReduceOp
from pparallel_reducers.all_reduce.buckets import buckets
from pparallel_reducers.all_reduce.roll import Roll, Signal, count_ready
from pparallel_reducers.gradients import clear, dense, held
from pparallel_reducers.layout import overlaps

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Parameter

    from pparallel.interfaces.collective import Collective


class Exchange(ABC):
    """How the gradients of one run's model travel.

    Args:
        group: the members, who do all that follows together.
        trainable: the parameters that have gradients, by name.
        limit: how many bytes travel together.
        mean: whether the mean is made of them, or the sum.
        optional: those of *trainable* that need no gradient; what has none in any member keeps
            none, so that the optimizer leaves it alone.
    """

    def __init__(
        self,
        group: Collective,
        trainable: Sequence[tuple[str, Parameter]],
        limit: int,
        mean: bool,
        optional: Sequence[Parameter] = (),
    ) -> None:
        self._group, self._mean = group, mean
        # What comes last in a model has its gradient first.
        self._buckets = buckets(reversed(trainable), limit)
        self._roll = Roll(group, self.device, optional)

    @property
    def device(self) -> torch.device:
        """Where the first gradients are, and so all that members say."""
        import torch

        return self._buckets[0][0][1].device if self._buckets else torch.device("cpu")

    @property
    def sizes(self) -> list[int]:
        """How many elements each bucket has."""
        return [sum(each.numel() for _, each in bucket) for bucket in self._buckets]

    @property
    def nbytes(self) -> int:
        """How large one gradient is."""
        return sum(each.nbytes for bucket in self._buckets for _, each in bucket)

    @abstractmethod
    def make(self, mine: Signal) -> list[Signal]:
        """Say *mine*, hear what all say, and combine the gradients if the step is made.

        The parameters then have the combined gradient; else they keep what they had. A member that
        has stopped has no gradients, and hands in zeros, which do not count in the mean.
        """

    def heed(self) -> Signal | None:
        """Return what is to be said instead of a gradient, if one cannot be handed in any more."""
        return None

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Have gradients add up."""
        yield

    def close(self) -> None:  # noqa: B027 - what has no hooks has nothing to do
        """Leave the model alone; safe to call again."""

    def _leave_out(self) -> None:
        """Take back the zeros of parameters that have a gradient in no member."""
        clear(self._roll.without_gradient)


class Nothing(Exchange):
    """There is nobody else: gradients are what they are."""

    @override
    def make(self, mine: Signal) -> list[Signal]:
        return [mine]


class Straight(Exchange):
    """Reduces the gradients where they lie: for collectives that read them there.

    A gradient that is not the parameter's alone, because the program holds it too or because it
    shares its memory, is copied first.
    """

    @override
    def make(self, mine: Signal) -> list[Signal]:
        import torch

        signals = self._roll.call(mine)
        if ready := count_ready(signals):
            averages = self._mean and ready == self._group.size()
            for bucket in self._buckets:
                tensors = _own_gradients([parameter for _, parameter in bucket])
                if self._mean and not averages:  # before they are added: a sum may overflow
                    with torch.no_grad():
                        torch._foreach_div_(tensors, ready)
                how = ReduceOp.AVG if averages else ReduceOp.SUM
                self._group.all_reduce_coalesced(tensors, how)
            self._leave_out()
        return signals


def _own_gradients(parameters: Sequence[Parameter]) -> list[Tensor]:
    """Return the gradients of *parameters*, dense and in memory that nobody else uses, or zeros.

    They are the parameters' gradients from now on.
    """
    import torch

    found = []
    for parameter, is_held in zip(parameters, held(parameters), strict=True):
        gradient = parameter.grad
        if gradient is None:
            parameter.grad = gradient = torch.zeros_like(parameter)
        elif gradient.layout is not torch.strided:
            parameter.grad = gradient = dense(gradient)
        elif is_held or (not gradient.is_contiguous() and overlaps(gradient)):
            parameter.grad = gradient = gradient.detach().clone()
        found.append(gradient)
    return found
