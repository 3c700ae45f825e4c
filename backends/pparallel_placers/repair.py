"""Makes an assignment fit, at what is easily seen to be the least cost."""

from __future__ import annotations

import itertools

from pparallel_placers.draft import Draft


def repair(draft: Draft) -> bool:
    """Move or swap models until no device's limit is exceeded; return whether that was reached.

    Each step takes something off the device that is exceeded most and exceeds no other, so this
    ends; where it ends too early, another assignment may still fit.
    """
    while True:
        fullest = min(range(len(draft.free)), key=draft.free.__getitem__)
        if draft.free[fullest] >= 0:
            return True
        if not (_move_one_off(draft, fullest) or _swap_one_off(draft, fullest)):
            return False


def _move_one_off(draft: Draft, device: int) -> bool:
    """Move the model off that costs least to move; return whether there was any."""
    options = [
        (draft.move_cost(model, there), model, there)
        for model, there in itertools.product(_models_on(draft, device), range(len(draft.free)))
        if draft.sizes[model] and draft.may_move(model, there)
    ]
    if options:
        _, model, there = min(options)
        draft.move(model, there)
    return bool(options)


def _swap_one_off(draft: Draft, device: int) -> bool:
    """Swap a model for a smaller one from elsewhere; return whether there were any."""
    options = [
        (draft.swap_cost(model, other), model, other)
        for model, (other, there) in itertools.product(
            _models_on(draft, device), enumerate(draft.assignment)
        )
        if 0 < draft.sizes[model] - draft.sizes[other] <= draft.free[there]
    ]
    if options:
        _, model, other = min(options)
        draft.swap(model, other)
    return bool(options)


def _models_on(draft: Draft, device: int) -> list[int]:
    return [model for model, where in enumerate(draft.assignment) if where == device]
