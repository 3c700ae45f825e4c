"""State machines: long random sequences of operations, each compared with a model.

The tests of a suite try one guarantee each; a machine mixes all operations in whatever order, and
shows the shortest sequence that it finds for which a backend does something else than the
interface says. The suites of pools and ordered servers run them. By itself::

    from pparallel.testing.machines import ordered_server_machine

    TestShelf = ordered_server_machine(ShelfServerConfig()).TestCase

They need Hypothesis, which ``pip install 'pparallel[testing]'`` brings.

Source: the rule-based state machines of Hypothesis (HypothesisWorks/hypothesis,
``hypothesis.stateful``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pparallel.errors import MissingDependencyError

if TYPE_CHECKING:
    from pparallel.testing.machines.ordered_server import (
        OrderedServerMachine,
        ordered_server_machine,
    )
    from pparallel.testing.machines.pool import PoolMachine, pool_machine
    from pparallel.testing.machines.running import run_machine

__all__ = [
    "OrderedServerMachine",
    "PoolMachine",
    "ordered_server_machine",
    "pool_machine",
    "run_machine",
]

_HOMES = {
    "OrderedServerMachine": "ordered_server",
    "PoolMachine": "pool",
    "ordered_server_machine": "ordered_server",
    "pool_machine": "pool",
    "run_machine": "running",
}


def __getattr__(name: str) -> object:
    # Lazily: the tasks of the pool's machine, which its workers import, need no Hypothesis.
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    try:
        importlib.import_module("hypothesis")
    except ImportError as error:
        install = "pip install 'pparallel[testing]'"
        raise MissingDependencyError("the state machines", str(error), install) from error
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
