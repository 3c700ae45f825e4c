"""The same training in plain torch, in one process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from pparallel.testing.training.case import Case, Training
from pparallel.testing.training.outcome import Outcome, outcome_of, persistent_buffers
from pparallel.testing.training.verdicts import Way

if TYPE_CHECKING:
    from torch import Tensor

#: When the members' buffers become their mean: after each step, at the end, or never.
Buffers: TypeAlias = Literal["each step", "end", "own"]


def train(case: Case, ranks: Sequence[int], way: Way, buffers: Buffers) -> list[Outcome]:
    """Train as the members *ranks* do together, and return what each has come to.

    Args:
        case: what they do.
        ranks: those that feed batches.
        way: how their work is put together.
            "gradients": one optimizer steps on the mean of their gradients, which are divided
            before they are added. "parameters": each has an optimizer, and parameters are averaged
            after each step; those that are not finite are left out. "sequence": one optimizer
            steps on one gradient after another. "turns": each has an optimizer, and steps the same
            parameters, one after another.
        buffers: when buffers are averaged; in turns they are those of the last.
    """
    return _Plain(case, ranks, way, buffers).train()


class _Plain:
    def __init__(self, case: Case, ranks: Sequence[int], way: Way, buffers: Buffers) -> None:
        self._case, self._way, self._buffers = case, way, buffers
        together = way in ("gradients", "sequence")
        self._all = [
            Training(case, rank, manages=not together or not index)
            for index, rank in enumerate(ranks)
        ]

    def train(self) -> list[Outcome]:
        make = {
            "parameters": self._averaged,
            "sequence": self._in_sequence,
            "turns": self._in_turns,
        }.get(self._way, self._joint)
        for step in range(self._case.steps):
            if step == self._case.change_at:
                for each in self._all:
                    self._case.change(each)
            if not make(step):
                break
            if self._buffers == "each step":
                self._average_buffers()
        if self._buffers == "end":
            self._average_buffers()
        for each in self._all:
            self._case.after_stop(each)
        return [outcome_of(each) for each in self._all]

    # -- steps --------------------------------------------------------------------------------

    def _joint(self, step: int) -> bool:
        """Make one step on the mean of all gradients."""
        for each in self._all:
            self._compute(each, step)
        first, *others = self._all
        if others:
            self._average_gradients()
        if self._buffers == "each step":
            self._average_buffers()  # also before hooks write to them
        before = [each.clone() for each in _buffers(first)]
        goes_on = self._step(first, step)
        for each in others:
            _copy(first.parameters(), each.parameters())
            _copy_written(before, _buffers(first), _buffers(each))
            _clear(each)
        for each in self._all:
            self._case.after_step(each, step)
        return goes_on

    def _averaged(self, step: int) -> bool:
        """Have each make a step of its own, and average the parameters."""
        goes_on = True
        before: list[Tensor] = [each.detach().clone() for each in self._all[0].module.parameters()]
        for each in self._all:
            self._compute(each, step)
            goes_on &= self._step(each, step)
        made: list[list[Tensor]] = [[*each.module.parameters()] for each in self._all]
        finite = [each for each in made if all(bool(p.isfinite().all()) for p in each)]
        for parameters in zip(*(finite or [before]), *made, strict=True):
            count = len(finite) or 1
            _fill(parameters[count:], _mean([each.detach() for each in parameters[:count]]))
        for each in self._all:
            self._case.after_step(each, step)
        return goes_on

    def _in_sequence(self, step: int) -> bool:
        """Have one optimizer step on one gradient after another."""
        goes_on, first = True, self._all[0]
        for each in self._all:
            self._compute(each, step)
            for mine, theirs in zip(first.parameters(), each.parameters(), strict=True):
                mine.grad = theirs.grad
            _copy(_buffers(each), _buffers(first))
            goes_on &= self._step(first, step)
            _clear(each)
            _copy(first.parameters(), each.parameters())
            _copy(_buffers(first), _buffers(each))
            self._case.after_step(each, step)
            for other in self._all:
                _copy(each.parameters(), other.parameters())
                _copy(_buffers(each), _buffers(other))
        return goes_on

    def _in_turns(self, step: int) -> bool:
        """Have one after another step the same parameters."""
        goes_on = True
        for index, each in enumerate(self._all):
            self._take(each, self._all[index - 1])
            self._compute(each, step)
            goes_on &= self._step(each, step)
            self._case.after_step(each, step)
        if step == self._case.steps - 1:
            for each in self._all[:-1]:
                self._take(each, self._all[-1])
        return goes_on

    # -- parts --------------------------------------------------------------------------------

    def _compute(self, training: Training, step: int) -> None:
        self._case.backward(training, step)
        self._case.before_step(training, step)

    def _step(self, training: Training, step: int) -> bool:
        """Step, and return whether the training goes on."""
        optimizer = training.optimizer
        assert optimizer is not None
        try:
            self._case.plain_step(training, optimizer)
        except Exception as error:
            if self._case.ends is None or not re.search(self._case.ends, str(error)):
                raise
            return False
        finally:
            _clear(training)
        return True

    def _average_gradients(self) -> None:
        first = self._all[0]
        rows = [*zip(*([p.grad for p in each.parameters()] for each in self._all), strict=True)]
        for parameter, row in zip(first.parameters(), rows, strict=True):
            if None not in row:
                parameter.grad = _mean(row)

    def _average_buffers(self) -> None:
        for row in zip(*(_buffers(each) for each in self._all), strict=True):
            if row[0].is_floating_point():
                _fill(row, _mean(row))

    def _take(self, training: Training, other: Training) -> None:
        _copy(other.module.parameters(), training.module.parameters())
        _copy(_buffers(other), _buffers(training))


def _buffers(training: Training) -> list[Tensor]:
    return [*persistent_buffers(training.module).values()]


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean; each is divided before it is added, so that no sum overflows."""
    total = tensors[0] / len(tensors)
    for each in tensors[1:]:
        total = total + each / len(tensors)
    return total


def _fill(tensors: Sequence[Tensor], value: Tensor) -> None:
    for each in tensors:
        each.detach().copy_(value)


def _copy(source: object, target: object) -> None:
    for one, other in zip(source, target, strict=True):  # type: ignore[call-overload]
        other.detach().copy_(one.detach())


def _copy_written(
    before: Iterable[Tensor], source: Iterable[Tensor], target: Iterable[Tensor]
) -> None:
    """Copy those tensors of *source* that are no longer as *before*."""
    for old, one, other in zip(before, source, target, strict=True):
        if not one.equal(old):
            other.copy_(one)


def _clear(training: Training) -> None:
    if training.optimizer is not None:
        training.optimizer.zero_grad()
    for each in training.parameters():
        each.grad = None
