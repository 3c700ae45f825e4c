"""All columns of low reduced cost: the subsets of the models, half by half.

The classes are divided into two halves, and all subsets of each are listed. The reduced cost of the
union of two is then one product of two matrices: what each costs by itself, the traffic between
them, and twice the product of their loads, for the square. The halves are sorted into bins of
nearly the same load; most pairs of bins are ruled out together, as their load is too far from the
device's share, or as even if all between them was saved they would cost too much.

Source: the two lists are those of Horowitz and Sahni (Computing partitions with applications to the
knapsack problem, 1974).
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pparallel_placers.exact.halves import Half, TooManyError, halves
from pparallel_placers.exact.instance import Counts, Floats, Instance

Singles = NDArray[np.float32]
Indices = NDArray[np.int64]

#: Pairs of subsets that are looked at in one product; bins of a half, and subsets for each.
_BLOCK, _BINS, _FEW = 1 << 20, 192, 256
#: More pairs than that are divided, so many subsets of the one half at a time.
_LARGE, _CHUNK = 1 << 20, 48
#: How often the savings and the largest load are computed from each other.
_REPEATS = 4
#: What is added to loads, for rounding.
_CLOSE = 1e-9
#: What a sum of products in single precision may be off by, as a share of its terms.
_ROUNDING = 2e-6


class OutOfTimeError(Exception):
    """The deadline has come."""


class Columns(NamedTuple):
    """Columns with their reduced costs.

    Attributes:
        counts: [k, c] how many models of each class.
        reduced: [k] reduced costs.
    """

    counts: Counts
    reduced: Floats


class _Binned:
    """The subsets of a half, for given prices, in bins by load; cheapest first in each."""

    def __init__(self, half: Half, own: Floats, least: Floats, useful: Indices) -> None:
        loads = half.loads[useful]
        least = least[useful]
        many = max(1, min(_BINS, len(useful) // _FEW))
        low = loads.min(initial=np.inf)
        width = (loads.max(initial=-np.inf) - low) or 1.0
        bins = np.minimum((loads - low) * (many / width), many - 1).astype(int)
        order = np.lexsort((least, bins))
        self.starts = np.flatnonzero(np.diff(bins[order], prepend=-1))
        self.ends = np.append(self.starts[1:], len(order))
        self.order = useful[order]
        self.own, self.least, self.loads = own[self.order], least[order], loads[order]
        if len(order):
            self.low = np.minimum.reduceat(self.loads, self.starts)
            self.high = np.maximum.reduceat(self.loads, self.starts)
        self.cheapest = self.least[self.starts]


class Subsets:
    """Finds the columns of low reduced cost.

    Raises:
        TooManyError: there are more subsets than can be listed.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._left, self._right = halves(instance)

    def below(
        self,
        group: int,
        prices: Floats,
        limit: float,
        *,
        most: int = 1 << 22,
        deadline: float = np.inf,
    ) -> Columns:
        """Return all columns for a device of *group* whose reduced cost is at most *limit*.

        Args:
            group: index of the group.
            prices: [c] what covering a model of each class is worth.
            limit: of the cost less the prices of what is covered.
            most: columns.
            deadline: by ``time.monotonic``.

        Raises:
            TooManyError: there are more than *most*.
            OutOfTimeError: the deadline has come.
        """
        found = _Search(self._instance, group, self._left, self._right, prices, limit)
        lefts, rights = found.pairs(most, deadline)
        counts = np.zeros((len(lefts), len(prices)), np.int8)
        counts[:, self._left.classes] = self._left.counts[lefts]
        counts[:, self._right.classes] = self._right.counts[rights]
        counts = counts[self._instance.fitting(group, counts)]
        reduced = self._instance.costs(group, counts) - counts @ prices
        order = np.flatnonzero(reduced <= limit)
        order = order[np.argsort(reduced[order], kind="stable")]
        return Columns(counts[order], reduced[order])


class _Search:
    """One search for pairs of subsets."""

    def __init__(
        self,
        instance: Instance,
        group: int,
        left: Half,
        right: Half,
        prices: Floats,
        limit: float,
    ) -> None:
        _, self._leg, self._power, self._room = instance.groups[group]
        self._weight, self._limit = instance.weight, limit
        self._left, self._right = (
            _Binned(half, *costs)
            for half, costs in zip((left, right), self._useful(left, right, prices), strict=True)
        )
        self._saved = (-self._leg * left.saved[self._left.order]).astype(np.float32)
        self._counts = right.counts[self._right.order].astype(np.float32)

    def _useful(
        self, left: Half, right: Half, prices: Floats
    ) -> list[tuple[Floats, Floats, Indices]]:
        """Return of each half what its subsets cost, at least, and which may be in a column."""
        owns = [
            self._leg * half.outward - half.counts @ prices[half.classes] for half in (left, right)
        ]
        leasts, most = owns, self._room + _CLOSE
        for _ in range(_REPEATS if self._leg > 0 else 0):
            leasts = [
                own - self._leg * half.savings(most)
                for own, half in zip(owns, (left, right), strict=True)
            ]
            if self._weight:
                above = self._limit - float(leasts[0].min() + leasts[1].min())
                over = math.sqrt(max(0.0, above) / self._weight)
                most = min(most, self._power + over + _CLOSE)
        both = float(leasts[0].min() + leasts[1].min())
        found = []
        for half, own, least in zip((left, right), owns, leasts, strict=True):
            excess = np.maximum(0.0, half.loads - self._power)
            least_of_all = least - least.min() + both + self._weight * excess**2
            useful = (least_of_all <= self._limit + 1e-12 * (1 + abs(self._limit))) & (
                half.loads <= most
            )
            found.append((own, least, np.flatnonzero(useful)))
        return found

    def pairs(self, most: int, deadline: float) -> tuple[Indices, Indices]:
        """Return the indices of left and right halves of columns that may be cheap enough."""
        lefts, rights = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for at in range(len(self._left.starts) if len(self._right.order) else 0):
            if time.monotonic() > deadline:
                raise OutOfTimeError
            for some, others in self._of_bin(at):
                lefts.append(self._left.order[some])
                rights.append(self._right.order[others])
                most -= len(some)
                if most < 0:
                    raise TooManyError
        return np.concatenate(lefts), np.concatenate(rights)

    def _of_bin(self, at: int) -> list[tuple[Indices, Indices]]:
        left, right = self._left, self._right
        low, high = left.low[at] + right.low, left.high[at] + right.high
        off = np.maximum(0.0, np.maximum(low - self._power, self._power - high))
        rest = self._limit - self._weight * off * off
        slack = 1e-12 * abs(rest).max()
        rest += slack
        first, last = left.starts[at], left.ends[at]
        useful = (left.least[first] + right.cheapest <= rest) & (low <= self._room + _CLOSE)
        bins = np.flatnonzero(useful)
        if not len(bins):
            return []
        chosen = np.concatenate(
            [self._cheap(each, rest[each] - left.least[first]) for each in bins.tolist()]
        )
        most = (rest - right.cheapest)[bins].max()
        last = first + int(np.searchsorted(left.least[first:last], most, "right"))
        if (last - first) * len(chosen) < _LARGE:
            return self._multiply(slice(first, last), chosen)
        found = []
        for start in range(first, last, _CHUNK):  # the later ones cost more, and go with fewer
            chosen = np.concatenate(
                [self._cheap(each, rest[each] - left.least[start]) for each in bins.tolist()]
            )
            if len(chosen):
                found += self._multiply(slice(start, min(last, start + _CHUNK)), chosen)
        return found

    def _cheap(self, bin_: int, most: float) -> Indices:
        first, last = self._right.starts[bin_], self._right.ends[bin_]
        many = int(np.searchsorted(self._right.least[first:last], most, "right"))
        return np.arange(first, first + many)

    def _multiply(self, left: slice, right: Indices) -> list[tuple[Indices, Indices]]:
        """Return the pairs whose reduced cost is at most the limit, or by rounding above."""
        ours, theirs = self._factors(left, right)
        scale = float(abs(ours).max(0) @ abs(theirs).max(0))
        limit = np.float32(self._limit + _ROUNDING * (scale + abs(self._limit)))
        found = []
        step = max(1, _BLOCK // len(right))
        for start in range(0, len(ours), step):
            hits = np.flatnonzero(ours[start : start + step] @ theirs.T <= limit)
            if len(hits):
                rows, columns = np.divmod(hits, len(right))
                found.append((left.start + start + rows, right[columns]))
        return found

    def _factors(self, left: slice, right: Indices) -> tuple[Singles, Singles]:
        """Return matrices whose product are the reduced costs, in single precision.

        Loads are counted from the middle of the bin, so that little is lost by rounding.
        """
        loads = self._left.loads[left]
        middle = (loads[0] + loads[-1]) / 2
        loads = loads - middle
        others = self._right.loads[right] - (self._power - middle)
        width = self._counts.shape[1]
        ours = np.empty((len(loads), width + 3), np.float32)
        ours[:, :width] = self._saved[left]
        ours[:, width] = 2 * self._weight * loads
        ours[:, width + 1] = self._left.own[left] + self._weight * loads**2
        ours[:, width + 2] = 1
        theirs = np.empty((len(right), width + 3), np.float32)
        theirs[:, :width] = self._counts[right]
        theirs[:, width] = others
        theirs[:, width + 1] = 1
        theirs[:, width + 2] = self._right.own[right] + self._weight * others**2
        return ours, theirs
