"""The two halves of the models, and all subsets of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pparallel_placers.exact.instance import Counts, Floats, Instance

Indices = NDArray[np.int64]

#: The most subsets that a half may have.
MOST = 1 << 17
#: What load is priced at to bound savings: shares of a subset's traffic for each load.
_PRICES = (0.5, 0.8, 1.1, 1.5, 2.0)


class TooManyError(Exception):
    """More subsets or columns than can be listed."""


class Half:
    """All subsets of some classes.

    Attributes:
        classes: the classes.
        counts: [k, classes] how many models of each are in a subset.
        loads: [k] their sizes.
        outward: [k] traffic of each with all that is not in it, the other half too.
        saved: [k, others] twice the traffic of each with a model of each class of the other half.
    """

    def __init__(self, instance: Instance, classes: Indices, others: Indices) -> None:
        self.classes = classes
        self.counts = _subsets(instance.members[classes])
        whole = np.zeros((len(self.counts), len(instance.members)), np.int8)
        whole[:, classes] = self.counts
        self.loads: Floats = whole @ instance.shares
        self.outward = instance.outward(whole)
        across: Floats = self.counts @ instance.traffic[np.ix_(classes, others)]
        self.saved: Floats = 2 * across
        members, shares = instance.members[others], instance.shares[others]
        self._all: Floats = across @ members
        load = float(members @ shares)
        each = self._all / load if load else np.zeros_like(self._all)
        self._priced = [
            (price * each, np.maximum(0.0, across - np.outer(price * each, shares)) @ members)
            for price in (_PRICES if load else ())
        ]

    def savings(self, most: float) -> Floats:
        """Return [k] the most traffic with the other half that may stay on the device.

        Args:
            most: what both together may weigh. The best part of the other half that weighs what is
                left is bounded as a knapsack is, by a price for its load.
        """
        left = np.maximum(0.0, most - self.loads)
        savings = self._all
        for price, rest in self._priced:
            savings = np.minimum(savings, price * left + rest)
        return savings


def halves(instance: Instance) -> tuple[Half, Half]:
    """Divide the classes so that both halves have about as many subsets, of like sizes.

    Raises:
        TooManyError: one would have more than can be listed.
    """
    divided: tuple[list[int], list[int]] = ([], [])
    many = [1, 1]
    for each in np.argsort(-instance.shares, kind="stable").tolist():
        at = 0 if many[0] <= many[1] else 1
        divided[at].append(each)
        many[at] *= int(instance.members[each]) + 1
    if max(many) > MOST:
        raise TooManyError
    left, right = (np.array(each, np.int64) for each in divided)
    return Half(instance, left, right), Half(instance, right, left)


def _subsets(members: NDArray[np.int64]) -> Counts:
    counts = np.zeros((1, len(members)), np.int8)
    for at, many in enumerate((members + 1).tolist()):
        counts = np.repeat(counts, many, 0)
        counts[:, at] = np.tile(np.arange(many, dtype=np.int8), len(counts) // many)
    return counts
