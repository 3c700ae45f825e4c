"""Columns of lower reduced cost, by local search from many at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pparallel_placers.exact.instance import Counts, Floats, Instance

_NOISE, _STEPS = 1e-13, 60


class _Moves(NamedTuple):
    """What it changes to add a model, to take one away, and to exchange two; infinite: not allowed.

    Attributes:
        add: [k, c]
        take: [k, c]
        exchange: [k, c, c] add one of the first, take one of the second.
    """

    add: Floats
    take: Floats
    exchange: Floats


def improve(instance: Instance, group: int, prices: Floats, columns: Counts) -> Counts:
    """Return what *columns* become while adding, taking or exchanging a model helps; each once."""
    counts = columns.astype(np.float64)
    going = np.arange(len(counts))
    for _ in range(_STEPS):
        moves = _moves(instance, group, prices, counts[going])
        at = np.arange(len(going))
        exchange = moves.exchange.reshape(len(going), -1)
        best = [moves.add.argmin(1), moves.take.argmin(1), exchange.argmin(1)]
        gains = np.stack([moves.add[at, best[0]], moves.take[at, best[1]], exchange[at, best[2]]])
        which = gains.argmin(0)
        helps = gains[which, at] < -_NOISE
        for kind, (adds, takes) in enumerate(_changes(best, counts.shape[1])):
            chosen = helps & (which == kind)
            if adds is not None:
                counts[going[chosen], adds[chosen]] += 1
            if takes is not None:
                counts[going[chosen], takes[chosen]] -= 1
        going = going[helps]
        if not len(going):
            break
    return np.unique(counts.astype(np.int8), axis=0)


def _changes(
    best: list[np.ndarray], width: int
) -> list[tuple[np.ndarray | None, np.ndarray | None]]:
    adds, takes, both = best
    return [(adds, None), (None, takes), (both // width, both % width)]


def _moves(instance: Instance, group: int, prices: Floats, counts: Floats) -> _Moves:
    _, leg, power, limit = instance.groups[group]
    weight, shares, traffic = instance.weight, instance.shares, instance.traffic
    loads = counts @ shares
    each = leg * (instance.busy - 2 * (counts @ traffic)) - prices
    pull = 2 * weight * (loads - power)[:, None] * shares
    square = weight * shares**2
    add = square + pull + each
    take = square - pull - each - 2 * leg * instance.inner
    full, none = counts >= instance.members, counts <= 0
    add[full], take[none] = np.inf, np.inf
    exchange = add[:, :, None] + take[:, None, :]
    exchange += 2 * leg * traffic - 2 * weight * np.outer(shares, shares)
    same = np.arange(len(shares))
    exchange[:, same, same] = np.inf
    after = loads[:, None] + shares
    exchange[after[:, :, None] - shares > limit] = np.inf
    add[after > limit] = np.inf
    return _Moves(add, take, exchange)
