"""Masters and slaves that fail, leave or go on at random."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from sync_rounds import Round, add_up
from sync_rounds import calls as calls

from pparallel import SyncMaster
from pparallel.errors import PeerLostError
from pparallel.testing.patience import PATIENCE


def participant(run: Callable[[int], Any], end: Any, plan: list[str]) -> list[str]:
    outcomes = []
    with end:
        for step in plan:
            if step == "fail":
                raise LookupError("planned")
            outcomes.append(f"sum {run(1)}")
    return outcomes


def test_whatever_happens_everybody_returns(calls: Round, rounds: Iterable[Random]) -> None:
    """Each ends with a result or a named error."""
    for chance in rounds:
        master = SyncMaster(add_up, timeout=PATIENCE)
        pipes = [master.register_slave(n) for n in range(1, 5)]
        plans = [
            ["run"] * chance.randint(1, 3) + (["fail"] if chance.random() < 0.1 else [])
            for _ in range(5)
        ]
        answers = [calls.call(participant, master.run_master, master, plans[0])]
        answers += [
            calls.call(participant, pipe.run_slave, pipe, plan)
            for pipe, plan in zip(pipes, plans[1:], strict=True)
        ]
        for answer, plan in zip(answers, plans, strict=True):
            error = answer.exception(PATIENCE)
            if error is None:
                assert answer.result() == ["sum 5"] * len(plan)
            elif not isinstance(error, LookupError):
                assert isinstance(error, PeerLostError)
                assert error.peer in ("master", "1", "2", "3", "4")
        calls.end()
