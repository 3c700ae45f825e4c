"""The linear program over the columns found so far: each model in one, one for each device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pparallel_placers.exact.instance import Counts, Floats, Instance

#: The best known cost becomes this, against which the solver's tolerances of 1e-7 are small.
_SCALE = 1e3


class Prices(NamedTuple):
    """What the linear program says.

    Attributes:
        cost: the least cost, fractions of columns allowed.
        models: [c] what covering a model of each class is worth.
        groups: [g] what a device of each group is worth.
    """

    cost: float
    models: Floats
    groups: Floats


class Master:
    """Solved by HiGHS, again from where it was after columns came to it.

    Args:
        instance: what is to be solved.
        cost: of the best assignment known.
    """

    def __init__(self, instance: Instance, cost: float) -> None:
        import highspy

        self._instance = instance
        self._scale = _SCALE / cost
        self._infinity = highspy.kHighsInf
        self._known: set[tuple[int, bytes]] = set()
        self._solver = highspy.Highs()  # type: ignore[no-untyped-call]
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("threads", 1)
        self._solver.setOptionValue("presolve", "off")
        needs = np.concatenate([instance.members, instance.devices]).astype(np.float64)
        none = np.zeros(0)
        self._solver.addRows(
            len(needs),
            needs,
            needs,
            0,
            np.zeros(len(needs), np.int32),
            none.astype(np.int32),
            none,
        )

    def add(self, group: int, columns: Counts) -> int:
        """Let it use *columns* for the devices of *group*; return how many of them are new."""
        new = [each for each in columns if (group, each.tobytes()) not in self._known]
        if not new:
            return 0
        self._known.update((group, each.tobytes()) for each in new)
        counts = np.array(new)
        costs = self._instance.costs(group, counts) * self._scale
        marks = np.zeros((len(new), len(self._instance.groups)), np.int8)
        marks[:, group] = 1
        whole = np.concatenate([counts, marks], 1)
        at, rows = np.nonzero(whole)
        starts = np.searchsorted(at, np.arange(len(new))).astype(np.int32)
        self._solver.addCols(
            len(new),
            costs,
            np.zeros(len(new)),
            np.full(len(new), self._infinity),
            len(rows),
            starts,
            rows.astype(np.int32),
            whole[at, rows].astype(np.float64),
        )
        return len(new)

    def solve(self) -> Prices:
        """Return the least cost, and the prices that prove it."""
        self._solver.run()
        duals = np.array(self._solver.getSolution().row_dual) / self._scale
        cost = self._solver.getInfo().objective_function_value / self._scale
        many = len(self._instance.members)
        return Prices(cost, duals[:many], duals[many:])
