"""What a training has come to, and comparison with plain torch."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pparallel.testing.training.case import Case, Tolerance, Training

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class Refusal(NamedTuple):
    """An exception that a trainer got.

    Attributes:
        call: which call raised it.
        kinds: the names of its type, and of those that this derives from.
        message: its text.
        harmed: what of the trainer's was changed by the call that raised it.
    """

    call: str
    kinds: tuple[str, ...]
    message: str
    harmed: tuple[str, ...]


@dataclass
class Outcome:
    """What the training of one member has come to.

    Attributes:
        rank: which member.
        manages: whether its notes are those of the optimizer.
        trains: whether it has fed batches.
        parameters: of its model, by name.
        buffers: of its model, by name.
        notes: what hooks and the loop noted where the optimizer is.
        losses: of each of its batches.
        refusals: the exceptions that it got.
        ended: whether the training came to its end.
        cleared: whether no parameter of the optimizer has a gradient in the end.
        state: what it has saved, if it was to save something.
    """

    rank: int
    manages: bool
    trains: bool
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    notes: dict[str, list[Any]]
    losses: list[Tensor]
    refusals: list[Refusal] = field(default_factory=list)
    ended: bool = True
    cleared: bool = True
    state: dict[str, Any] = field(default_factory=dict)


def outcome_of(training: Training, *, trains: bool = True) -> Outcome:
    """Return what *training* has come to."""
    if manages := training.optimizer is not None:
        training.case.finish(training)
    module = training.module
    # Those that are not persistent are those of the member's own forward passes.
    buffers = dict(module.named_buffers()) if trains else persistent_buffers(module)
    return Outcome(
        training.rank,
        manages,
        trains,
        {name: each.detach().clone() for name, each in module.named_parameters()},
        {name: each.clone() for name, each in buffers.items()},
        _plain(training.notes),
        training.losses,
        cleared=all(each.grad is None for each in training.parameters()),
    )


def persistent_buffers(module: Module) -> dict[str, Tensor]:
    """Return the buffers of *module* that all members have in common, by name."""
    own = {
        f"{path}.{name}" if path else name
        for path, each in module.named_modules()
        for name in each._non_persistent_buffers_set
    }
    return {name: each for name, each in module.named_buffers() if name not in own}


class Snapshot:
    """The parameters, gradients and optimizer's state of a trainer at one time."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._values = self._now()

    def harmed(self) -> tuple[str, ...]:
        """Return what has changed since."""
        now = self._now()
        return tuple(name for name, each in self._values.items() if not _same(each, now[name]))

    def _now(self) -> dict[str, Any]:
        training = self._training
        parameters = training.parameters()
        values = {
            "parameters": [each.detach() for each in parameters],
            "gradients": [each.grad for each in parameters],
            "optimizer": training.optimizer and training.optimizer.state_dict(),
        }
        return copy.deepcopy(values)


def check_equal(
    case: Case,
    actual: Outcome,
    plain: Outcome,
    notes: dict[str, list[Any]],
    tolerance: Tolerance | None,
) -> None:
    """Check that *actual* is what *plain* has come to, and saw *notes*."""
    pairs: list[tuple[str, Any, Any]] = [
        ("parameters", actual.parameters, plain.parameters),
        ("buffers", actual.buffers, {name: plain.buffers[name] for name in actual.buffers}),
    ]
    if actual.trains:
        pairs.append(("losses", actual.losses, plain.losses))
    if actual.manages:
        pairs.append(("notes", actual.notes, notes))
    for what, mine, theirs in pairs:
        _check(mine, theirs, tolerance, f"{case.name}: the {what} of member {actual.rank}")


def is_refused(outcome: Outcome, kind: type[Exception], pattern: str) -> bool:
    """Return whether *outcome* has an exception of that *kind* whose message has *pattern*."""
    return any(
        kind.__name__ in each.kinds and re.search(pattern, each.message, re.S)
        for each in outcome.refusals
    )


def _check(actual: Any, expected: Any, tolerance: Tolerance | None, what: str) -> None:
    relative, absolute = tolerance or (None, None)
    torch.testing.assert_close(
        actual,
        expected,
        rtol=relative,
        atol=absolute,
        equal_nan=True,
        msg=lambda text: f"{what} are not those of plain torch: {text}",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to_dense() if value.is_sparse else value.detach().clone()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        pair = [each.to_dense() if each.is_sparse else each for each in (one, other)]
        return pair[0].shape == pair[1].shape and bool(
            torch.allclose(pair[0], pair[1], rtol=0, atol=0, equal_nan=True)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
