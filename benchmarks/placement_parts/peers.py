"""Peers of the exact placer: the plain formulation on two solvers, and two heuristics.

The plain formulation has a variable for each model and device, whose product for two models is
made linear for each device. HiGHS takes the squares of the loads as tangents from below, close
together where loads are near their share; CP-SAT as products of whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import util
from typing import Any

from pparallel.interfaces.placer import Problem
from pparallel_placers.exact.stars import legs
from pparallel_placers.local_search import search

Assignment = Sequence[int]

#: Seconds after which a peer's solver gives up.
LIMIT = 5.0
_WHOLE = 10**5
_TANGENTS = [sign * 0.5 * 0.75**step for step in range(24) for sign in (1, -1)]


def without(name: str) -> str:
    """Return why a library is left out, if it is not installed."""
    return "" if util.find_spec(name) else f"{name} is not installed"


def local_search(problem: Problem) -> Assignment:
    """Return the best of 50 starts."""
    return search(problem, starts=50)


def descent(problem: Problem) -> Assignment:
    """Return what 500 steps of gradient descent end at, made to fit."""
    from pparallel_placers.config import GradientPlacerConfig
    from pparallel_placers.gradient import GradientPlacer

    config = GradientPlacerConfig(restarts=1, local_search=False)
    return GradientPlacer(config).solve(problem).assignment


def highs(problem: Problem) -> Assignment:
    """Solve the plain formulation with HiGHS; return nothing if it finds nothing in time."""
    import highspy

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", LIMIT)
    solver.setOptionValue("mip_rel_gap", 1e-6)
    on = [[solver.addBinary() for _ in problem.devices] for _ in problem.models]
    for row in on:
        solver.addConstr(sum(row[1:], row[0]) == 1)
    objective: Any = 0
    for at, (limit, power) in enumerate(zip(problem.limits_mb, problem.power_shares, strict=True)):
        solver.addConstr(_sum(problem.sizes_mb, on, at) <= limit)
        square = solver.addVariable(lb=0)
        load = _sum(problem.shares, on, at)
        for off in _TANGENTS:
            solver.addConstr(square - 2 * off * load >= -2 * off * power - off * off)
        objective = objective + problem.imbalance_weight * square
    for i, j, at, cost in _apart(problem):
        apart = solver.addVariable(lb=0)
        solver.addConstr(apart - on[i][at] + on[j][at] >= 0)
        solver.addConstr(apart + on[i][at] - on[j][at] >= 0)
        objective = objective + cost * apart
    solver.minimize(objective * (1 / _unit(problem)))
    values = solver.getSolution().col_value
    if not solver.getSolution().value_valid:
        return ()
    return [max(range(len(row)), key=lambda at, row=row: values[row[at].index]) for row in on]  # type: ignore[misc]


def cpsat(problem: Problem) -> Assignment:
    """Solve the plain formulation with CP-SAT; return nothing if it finds nothing in time."""
    from ortools.sat.python import cp_model

    from pparallel.machine.cpus import usable_cpus

    model = cp_model.CpModel()
    on = [[model.new_bool_var("") for _ in problem.devices] for _ in problem.models]
    for row in on:
        model.add_exactly_one(row)
    sizes = [round(each * 1000) for each in problem.sizes_mb]
    shares = [round(each * _WHOLE) for each in problem.shares]
    weight = problem.imbalance_weight / _unit(problem)
    terms = []
    for at, (limit, power) in enumerate(zip(problem.limits_mb, problem.power_shares, strict=True)):
        column = [row[at] for row in on]
        model.add(cp_model.LinearExpr.weighted_sum(column, sizes) <= int(limit * 1000))
        off = model.new_int_var(-_WHOLE, _WHOLE, "")
        load = cp_model.LinearExpr.weighted_sum(column, shares)
        model.add(off == load - round(power * _WHOLE))
        square = model.new_int_var(0, _WHOLE**2, "")
        model.add_multiplication_equality(square, [off, off])
        terms.append(round(weight * 1000) * square)
    for i, j, at, cost in _apart(problem):
        apart = model.new_bool_var("")
        model.add(apart >= on[i][at] - on[j][at])
        model.add(apart >= on[j][at] - on[i][at])
        terms.append(round(cost / _unit(problem) * 1000 * _WHOLE**2) * apart)
    model.minimize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = usable_cpus()
    solver.parameters.max_time_in_seconds = LIMIT
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return ()
    return [max(range(len(row)), key=lambda at, row=row: solver.value(row[at])) for row in on]  # type: ignore[misc]


def _apart(problem: Problem) -> list[tuple[int, int, int, float]]:
    """Return what it costs that one of two models is on a device and the other is not."""
    found = legs(problem.spans)
    if found is None:
        raise ValueError("these distances are no sums of legs")
    return [
        (i, j, at, problem.traffic[i][j] * leg)
        for i in range(len(problem.models))
        for j in range(i)
        if problem.traffic[i][j]
        for at, leg in enumerate(found)
    ]


def _sum(factors: Sequence[float], on: Sequence[Sequence[Any]], at: int) -> Any:
    first, *rest = (factor * row[at] for factor, row in zip(factors, on, strict=True))
    return sum(rest, first)


def _unit(problem: Problem) -> float:
    return sum(map(sum, problem.traffic)) / 2 or 1.0
