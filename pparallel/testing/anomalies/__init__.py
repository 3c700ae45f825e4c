"""Anomaly tests: the N-th call of a kind fails inside an operation, for N = 1, 2, ...

After each failure the operation has raised or succeeded within its bound, the next one works, and
nothing is left behind. ``python -m pparallel.testing.anomalies`` runs the built-in scenarios and
prints a table.

Source: the anomaly tests of SQLite (https://sqlite.org/testing.html), which fail the N-th
allocation and the N-th I/O operation in a loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pparallel.testing.anomalies.operations import Scenario, built_in
    from pparallel.testing.anomalies.rounds import Fault, Outcome
    from pparallel.testing.anomalies.running import Report, Row, run_scenario, table

__all__ = ["Fault", "Outcome", "Report", "Row", "Scenario", "built_in", "run_scenario", "table"]

_HOMES = {
    "Fault": "rounds",
    "Outcome": "rounds",
    "Report": "running",
    "Row": "running",
    "Scenario": "operations",
    "built_in": "operations",
    "run_scenario": "running",
    "table": "running",
}


def __getattr__(name: str) -> object:
    # The module of the faults is imported by processes that must import little.
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
