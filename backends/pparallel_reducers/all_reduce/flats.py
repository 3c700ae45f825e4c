"""Combine gradients after the backward pass, in flat tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from pparallel.interfaces.collective import Collective, Work
from pparallel_reducers.all_reduce.buckets import parts
from pparallel_reducers.all_reduce.exchange import Exchange
from pparallel_reducers.all_reduce.roll import Signal, count_ready
from pparallel_reducers.gradients import checksum, dense, references, stored

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter


class Flat:
    """The gradients of some parameters, one after another, in memory that is used for every step.

    Fresh memory would cost as much as the copy, at each step.

    Attributes:
        names: of the parameters.
        parameters: they themselves.
        tensor: all elements.
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]]) -> None:
        first = named[0][1]
        self.names = [name for name, _ in named]
        self.parameters = [each for _, each in named]
        count = sum(each.numel() for each in self.parameters)
        self._spare: tuple[Tensor, list[Tensor], int | None] | None = None
        self._allocate(torch.zeros(count, dtype=first.dtype, device=first.device))
        self._work: Work[None] | None = None
        self._taken: list[tuple[Tensor | None, int]] = []
        self._bits: Tensor | None = None

    def _allocate(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._parts = parts(tensor, self.parameters)
        self._references = references(tensor)

    def _is_kept(self) -> bool:
        """Return whether somebody, such as a hook, may still hold a gradient that lies here."""
        return self._references is None or references(self.tensor) != self._references

    def _change_memory(self) -> None:
        """Leave the memory to who keeps it, until it is free again."""
        former = (self.tensor, self._parts, self._references)
        if self._spare is not None:
            self.tensor, self._parts, self._references = self._spare
        if self._spare is None or self._is_kept():
            self._allocate(torch.empty_like(self.tensor))
        self._spare = former

    @property
    def begun(self) -> bool:
        """Whether it is on its way."""
        return self._work is not None

    def begin(self, group: Collective, divisor: int) -> None:
        """Begin to add up what the members have, divided by *divisor*; no gradient is zeros."""
        gradients = [each.grad for each in self.parameters]
        if self._is_kept():
            self._change_memory()
        with torch.no_grad():
            for gradient, part in zip(gradients, self._parts, strict=True):
                if gradient is None:
                    part.zero_()
                elif divisor == 1 or gradient.is_sparse:
                    part.copy_(dense(gradient)).div_(divisor)
                else:
                    torch.div(gradient, divisor, out=part)
        self._taken = [(each, 0 if each is None else each._version) for each in gradients]
        self._work = group.all_reduce(self.tensor, async_op=True)

    def remember(self) -> None:
        """Keep what tells of each gradient that was taken whether it changes, for :meth:`changed`.

        It is read once more for this, while it is still in the caches.
        """
        self._bits = _checksums([each for each, _ in self._taken], self.tensor.device)

    def changed(self) -> int | None:
        """Return the place of a gradient that is not what was taken of it, if there is one.

        ``GradScaler.unscale_`` and whatever writes to ``gradient.data`` count no version: what
        :meth:`remember` kept is compared too.
        """
        for place, (parameter, (taken, version)) in enumerate(
            zip(self.parameters, self._taken, strict=False)
        ):
            if parameter.grad is not taken or (taken is not None and taken._version != version):
                return place
        if self._bits is None or not self._taken:
            return None
        now = _checksums([each for each, _ in self._taken], self.tensor.device)
        differing = (now != self._bits).any(dim=1).nonzero().flatten().tolist()
        return differing[0] if differing else None

    def wait(self) -> None:
        """Wait until it is there, if it is on its way."""
        if self._work is not None:
            self._work.wait()

    def give(self) -> None:
        """Have the parameters take what was made of their gradients."""
        for parameter, part in zip(self.parameters, self._parts, strict=True):
            parameter.grad = part.detach()  # whoever keeps it is counted

    def clear(self) -> None:
        """Be ready for the next gradients."""
        self._work, self._taken, self._bits = None, [], None


def _checksums(gradients: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """Return what changes with each gradient, as when it is scaled or clipped: [n, 2] int64."""
    sums = [torch.zeros(2, dtype=torch.int64, device=device)] * len(gradients)
    for place, each in enumerate(gradients):
        if each is not None and each.numel():
            sums[place] = checksum(stored(each.detach()))
    return torch.stack(sums)


class Flattened(Exchange):
    """Reduces copies of the gradients that lie one after another, a bucket at a time."""

    def __init__(
        self,
        group: Collective,
        trainable: Sequence[tuple[str, Parameter]],
        limit: int,
        mean: bool,
        optional: Sequence[Parameter] = (),
    ) -> None:
        super().__init__(group, trainable, limit, mean, optional)
        self._flats = [Flat(each) for each in self._buckets]

    @override
    def make(self, mine: Signal) -> list[Signal]:
        signals = self._roll.call(mine)
        if ready := count_ready(signals):
            try:
                for each in self._flats:
                    each.begin(self._group, ready if self._mean else 1)
            except Exception:
                settled(self._flats)  # for nothing but the end of what is under way
                raise
            if errors := settled(self._flats):
                raise errors[0]
            for each in self._flats:
                each.give()
            self._leave_out()
        return signals


def settled(flats: Sequence[Flat]) -> list[Exception]:
    """Wait for all that are on their way; return what they raise."""
    errors = []
    for each in flats:
        try:
            each.wait()
        except Exception as error:  # noqa: BLE001 - raised when none is under way any more
            errors.append(error)
        each.clear()
    return errors
