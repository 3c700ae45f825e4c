"""What each member says of a step, so that all do the same."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from pparallel.interfaces.collective import Collective


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


class Signal(NamedTuple):
    """What one member says, and of which of the trainable parameters."""

    word: Word
    place: int = 0


_PLACES = 16  #: more than there are words


class Roll:
    """Has every member hear what all say."""

    def __init__(self, group: Collective, device: torch.device) -> None:
        self._group, self._device = group, device

    def call(self, mine: Signal) -> list[Signal]:
        """Say *mine*; return what all say, by rank."""
        import torch

        said = torch.zeros(self._group.size(), dtype=torch.int64)
        said[self._group.rank] = mine.word + _PLACES * mine.place
        heard = said.to(self._device)
        self._group.all_reduce(heard)
        return [Signal(Word(each % _PLACES), each // _PLACES) for each in heard.tolist()]


def count_ready(signals: Sequence[Signal]) -> int:
    """Return how many hand in a gradient; 0 unless the step is made."""
    words = [each.word for each in signals]
    return words.count(Word.READY) if set(words) <= {Word.READY, Word.STOPPED} else 0
