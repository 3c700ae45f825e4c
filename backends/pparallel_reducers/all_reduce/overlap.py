"""Combine gradients during the backward pass."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from pparallel.interfaces.collective import Collective
from pparallel_reducers.all_reduce.exchange import Exchange
from pparallel_reducers.all_reduce.flats import Flat, settled
from pparallel_reducers.all_reduce.roll import Signal, Word, count_ready

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter


class DuringBackward(Exchange):
    """Reduces each bucket as soon as its gradients are there, in one order in all members.

    Source: PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020).
    """

    def __init__(
        self,
        group: Collective,
        trainable: Sequence[tuple[str, Parameter]],
        limit: int,
        mean: bool,
        optional: Sequence[Parameter] = (),
    ) -> None:
        super().__init__(group, trainable, limit, mean, optional)
        self._places = {name: place for place, (name, _) in enumerate(trainable)}
        self._flats = [Flat(each) for each in self._buckets]
        self._came: list[set[int]] = [set() for _ in self._flats]  # gradients that are there
        self._lock = threading.Lock()
        self._begun = 0  # so many of the buckets
        self._accumulating = False
        self._spoiled: Signal | None = None
        self._error: Exception | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._comes, number, place))
            for number, flat in enumerate(self._flats)
            for place, parameter in enumerate(flat.parameters)
            if parameter.requires_grad
        ]
        # What is frozen, beside the model, gets no gradient: nobody waits for it.
        self._expected = [
            sum(each.requires_grad for each in flat.parameters) for flat in self._flats
        ]

    @override
    def close(self) -> None:
        for each in self._hooks:
            each.remove()

    @contextmanager
    @override
    def accumulating(self) -> Iterator[None]:
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    @override
    def heed(self) -> Signal | None:
        if self._spoiled is not None:
            return self._spoiled
        for flat in self._flats[: self._begun]:
            if (place := flat.changed()) is not None:
                return Signal(Word.CHANGED, self._places[flat.names[place]])
        return None

    @override
    def make(self, mine: Signal) -> list[Signal]:
        if mine.word is Word.STOPPED and self._begun:
            mine = Signal(Word.UNSTEPPED)
        signals = self._reduce(mine)
        while Word.UNSTEPPED in {each.word for each in signals}:
            # What that member had handed in is in the sum: once more, without it.
            if mine.word is Word.UNSTEPPED:
                mine = Signal(Word.STOPPED)
            signals = self._reduce(mine)
        return signals

    def _reduce(self, mine: Signal) -> list[Signal]:
        self._begin(everything=True)
        try:
            if self._error is not None:
                raise copy.copy(self._error)
            signals = self._roll.call(mine)
        except Exception:
            settled(self._flats)  # for nothing but the end of what is under way
            raise
        if errors := settled(self._flats):
            raise errors[0]
        if ready := count_ready(signals):
            for each in self._flats:
                each.give()
            self._weigh(ready)
            self._leave_out()
        for came in self._came:
            came.clear()
        self._begun, self._spoiled = 0, None
        return signals

    def _weigh(self, ready: int) -> None:
        """Make the mean of all members that of those who handed in a gradient."""
        if self._mean and ready < self._group.size():
            with torch.no_grad():
                for each in self._flats:
                    each.tensor.mul_(self._group.size() / ready)

    def _comes(self, number: int, place: int, _: Tensor) -> None:
        if self._accumulating:
            return
        with self._lock:
            if place in self._came[number]:
                name = self._flats[number].names[place]
                self._spoiled = Signal(Word.TWICE, self._places[name])
                message = (
                    f"parameter {name!r} got a second gradient since it was handed in: with"
                    " 'overlap', all backward passes before a step but the last, and those for no"
                    " step, go inside 'with reducer.accumulate():'. After a backward pass that was"
                    " not followed by a step, call stop() and start() in all members"
                )
                raise RuntimeError(message)
            self._came[number].add(place)
            self._begin(everything=False)

    def _begin(self, *, everything: bool) -> None:
        """Begin the buckets that are full, or all, in order; the step raises what goes wrong."""
        divisor = self._group.size() if self._mean else 1
        while self._error is None and self._begun < len(self._flats):
            flat = self._flats[self._begun]
            if not everything and len(self._came[self._begun]) < self._expected[self._begun]:
                return
            try:
                flat.begin(self._group, divisor)
                if not everything:
                    flat.remember()
            except Exception as error:  # noqa: BLE001 - raised by the step, not by backward()
                self._error = error
                return
            self._begun += 1
