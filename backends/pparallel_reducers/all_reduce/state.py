"""What all members begin with, and what they end with."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pparallel_reducers.all_reduce.buckets import buckets, flattened, parts
from pparallel_reducers.all_reduce.roll import Roll, Signal, Word, finished
from pparallel_reducers.gradients import averages
from pparallel_reducers.layout import Layout, ModelTensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module

    from pparallel.interfaces.collective import Collective

logger = logging.getLogger(__name__)

Named = tuple[str, "Tensor"]


class State:
    """Parameters and persistent buffers of one member's model, beside those of the others.

    Attributes:
        buffer_names: of the persistent buffers.

    Args:
        group: the members.
        names: theirs, by rank.
        recorded: the model's tensors at the start.
        model: this member's.
        others: parameters that the optimizer steps beside the model's.
        limit: how many bytes travel together.
        sent: told how many bytes left for the others.
    """

    def __init__(
        self,
        group: Collective,
        names: Sequence[str],
        recorded: ModelTensors,
        model: Module,
        others: Sequence[Named],
        limit: int,
        sent: Callable[[int], None],
    ) -> None:
        self._group, self._names, self._limit, self._sent = group, names, limit, sent
        self._model, self._recorded, self._layout = model, recorded, recorded.layout
        named = [*recorded.parameters.items(), *others]
        self._parameters = [(name, each.detach()) for name, each in named]
        self.buffer_names = [each.name for each in self._layout.entries if each.kind == "buffer"]

    @property
    def _buffers(self) -> list[Named]:
        """The persistent buffers as they are now: programs replace them."""
        return self._recorded.buffers(self._model)

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
        finished(self._group.broadcast, length, self._first)
        if self._leads:
            data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
        else:
            data = torch.empty(int(length), dtype=torch.uint8, device=device)
        finished(self._group.broadcast, data, self._first)
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

        buffers = self._buffers
        mixed = [each for each in buffers if averages(each[1].dtype)]
        for bucket in buckets(mixed, self._limit):
            tensors = [each for _, each in bucket]
            flat = flattened(tensors)  # a copy: buffers may be views of one another
            self._group.all_reduce(flat, ReduceOp.AVG)
            self._sent(flat.nbytes)
            for tensor, part in zip(tensors, parts(flat, tensors), strict=True):
                tensor.detach().copy_(part)
        self._take([each for each in buffers if not averages(each[1].dtype)])

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
            finished(self._group.broadcast, flat, self._first)
            if self._leads:
                self._sent(flat.nbytes)
                continue
            for (name, tensor), part in zip(bucket, parts(flat, tensors), strict=True):
                if not _alike(tensor, part):
                    changed = changed or name
                    tensor.detach().copy_(part)
        return changed


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return whether they hold the same bytes, which NaN does too."""
    import torch

    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    import torch

    plain = tensor.resolve_conj().resolve_neg()  # conjugated views have no bytes of their own
    return plain.contiguous().reshape(-1).view(torch.uint8)
