"""What all members begin with, and what they end with."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pparallel_reducers.all_reduce.buckets import buckets, flattened, parts
from pparallel_reducers.all_reduce.roll import Roll, Signal, Word
from pparallel_reducers.gradients import averages
from pparallel_reducers.layout import Layout, state_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module

    from pparallel.interfaces.collective import Collective

logger = logging.getLogger(__name__)

Named = tuple[str, "Tensor"]


class State:
    """Parameters and persistent buffers of one member's model, beside those of the others.

    Args:
        group: the members.
        names: theirs, by rank.
        layout: of the model.
        model: this member's.
        limit: how many bytes travel together.
        sent: told how many bytes left for the others.
    """

    def __init__(
        self,
        group: Collective,
        names: Sequence[str],
        layout: Layout,
        model: Module,
        limit: int,
        sent: Callable[[int], None],
    ) -> None:
        self._group, self._names, self._layout, self._limit = group, names, layout, limit
        self._sent = sent
        tensors = {name: each.detach() for name, each in state_of(model).items()}
        buffered = {each.name for each in layout.entries if each.kind == "buffer"}
        named = [(each.name, tensors[each.name]) for each in layout.entries]
        self._parameters = [each for each in named if each[0] not in buffered]
        self._buffers = [each for each in named if each[0] in buffered]

    @property
    def _first(self) -> int:
        return self._group.ranks[0]

    @property
    def _leads(self) -> bool:
        return self._group.rank == self._first

    # -- at the start ---------------------------------------------------------------------------

    def compare(self, settings: Mapping[str, object], device: torch.device) -> ValueError | None:
        """Return what is wrong if not all have a model of one layout, and the same *settings*.

        If it is, all members return something.
        """
        first = self._names[0]
        entries, theirs = json.loads(self._described(settings, device))
        wrong: ValueError | None = None
        try:
            Layout(entries).check(self._layout)
        except ValueError as error:
            wrong = error
        differing = [each for each in settings if settings[each] != theirs[each]]
        if wrong is None and differing:
            values = f"{settings[differing[0]]}, that of {first!r} is {theirs[differing[0]]}"
            wrong = ValueError(f"the {differing[0]} of this member is {values}: give all the same")
        signal = Signal(Word.READY if wrong is None else Word.DIFFERS)
        words = [each.word for each in Roll(self._group, device).call(signal)]
        if wrong is None and Word.DIFFERS in words:
            name = self._names[words.index(Word.DIFFERS)]
            wrong = ValueError(
                f"the model or the config of member {name!r} is not that of {first!r}"
            )
        return wrong

    def _described(self, settings: Mapping[str, object], device: torch.device) -> str:
        """Return what the first member says of itself."""
        import torch

        text = json.dumps((self._layout.plain(), dict(settings))).encode()
        length = torch.tensor([len(text)], device=device)
        self._group.broadcast(length, self._first)
        if self._leads:
            data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
        else:
            data = torch.empty(int(length), dtype=torch.uint8, device=device)
        self._group.broadcast(data, self._first)
        return bytes(data.tolist()).decode()

    def spread(self) -> None:
        """Give all members what the first has."""
        self._take(self._parameters)
        self.spread_buffers()

    # -- at a step, and in the end ----------------------------------------------------------------

    def spread_buffers(self) -> None:
        """Give all members the buffers of the first."""
        self._take(self._buffers)

    def average_buffers(self) -> None:
        """Give all members the mean of their buffers; of integers, what the first has."""
        from pparallel.interfaces.collective import ReduceOp

        mixed = [each for each in self._buffers if averages(each[1].dtype)]
        for bucket in buckets(mixed, self._limit):
            tensors = [each for _, each in bucket]
            self._group.all_reduce_coalesced(tensors, ReduceOp.AVG)
            self._sent(sum(each.nbytes for each in tensors))
        self._take([each for each in self._buffers if not averages(each[1].dtype)])

    def settle(self) -> None:
        """Give all members the parameters of the first, which they should have anyway."""
        if changed := self._take(self._parameters):
            logger.warning(
                "the parameters of %s had come to differ from those of %s, first in %r, and gave"
                " way to them: optimizers that begin alike and step alike keep them the same",
                self._names[self._group.ranks.index(self._group.rank)],
                self._names[0],
                changed,
            )

    def _take(self, named: Sequence[Named]) -> str | None:
        """Take the first member's of these; return the name of one that differed, if any did."""
        changed = None
        for bucket in buckets(named, self._limit):
            tensors = [each for _, each in bucket]
            flat = flattened(tensors)
            self._group.broadcast(flat, self._first)
            if self._leads:
                self._sent(flat.nbytes)
                continue
            for (name, tensor), part in zip(bucket, parts(flat, tensors), strict=True):
                if not _alike(tensor, part):
                    changed = changed or name
                    tensor.copy_(part)
        return changed


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return whether they hold the same bytes, which NaN does too."""
    import torch

    mine, theirs = (each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(mine, theirs)
