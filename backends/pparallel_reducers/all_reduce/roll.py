"""What each member says of a step, so that all do the same."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Parameter

    from pparallel.interfaces.collective import Collective, Work


class Word(enum.IntEnum):
    """What one member says; 0 says nothing, for what all say is added up."""

    READY = 1  #: it hands in a gradient
    STOPPED = 2  #: it is in stop(), and makes the others' steps with them
    UNSTEPPED = 3  #: it is in stop(), and has handed in part of a gradient before
    MISSING = 4  #: a parameter has no gradient
    NOT_FINITE = 5  #: a gradient is to be refused
    CHANGED = 6  #: a gradient has changed since it was handed in
    TWICE = 7  #: a gradient came a second time after it was handed in
    FAILED = 8  #: its optimizer has failed before
    DIFFERS = 9  #: its model, or its config, is not the first member's
    ALTERED = 10  #: its model has other parameters than at the start
    BUFFER_NAN = 11  #: a buffer, instead of a parameter, is to be refused
    OTHER_DTYPE = 12  #: a gradient is of another dtype than its parameter


class Signal(NamedTuple):
    """What one member says, and of which of the trainable parameters."""

    word: Word
    place: int = 0


_PLACES = 16  #: more than there are words


class Roll:
    """Has every member hear what all say.

    Args:
        group: the members.
        device: where to say it.
        optional: parameters that need no gradient.

    Attributes:
        without_gradient: those of *optional* that have a gradient in no member.
    """

    def __init__(
        self, group: Collective, device: torch.device, optional: Sequence[Parameter] = ()
    ) -> None:
        self._group, self._device, self._optional = group, device, optional
        self.without_gradient: list[Parameter] = []

    def call(self, mine: Signal) -> list[Signal]:
        """Say *mine*; return what all say, by rank."""
        import torch

        size = self._group.size()
        said = [0] * size + [parameter.grad is not None for parameter in self._optional]
        said[self._group.rank] = mine.word + _PLACES * mine.place
        heard = torch.tensor(said, dtype=torch.int64, device=self._device)
        finished(self._group.all_reduce, heard)
        words = heard.tolist()
        counts = zip(self._optional, words[size:], strict=True)
        self.without_gradient = [parameter for parameter, count in counts if not count]
        return [Signal(Word(each % _PLACES), each // _PLACES) for each in words[:size]]


def finished(operation: Callable[..., Work[None] | None], tensor: Tensor, *args: object) -> None:
    """Do an operation on a tensor that the CPU reads next.

    On a GPU it may be in order on a stream only. This waits for it and raises what goes wrong,
    where a copy to the CPU would bring whatever is there.
    """
    work = operation(tensor, *args, async_op=not tensor.is_cpu)
    if work is not None:
        work.wait()


def count_ready(signals: Sequence[Signal]) -> int:
    """Return how many hand in a gradient; 0 unless the step is made."""
    words = [each.word for each in signals]
    return words.count(Word.READY) if set(words) <= {Word.READY, Word.STOPPED} else 0
