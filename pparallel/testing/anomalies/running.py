"""Runs scenarios, each in processes of its own, and reports what came of their rounds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pparallel.testing.anomalies.operations import BOUND, Scenario
from pparallel.testing.anomalies.rounds import GOOD, UNREACHED, Fault, Journal, Order, Outcome

_SILENCE = 4  #: times the bound, without a new line in the journal, after which a process is ended
_STARTS = 200  #: of processes for one scenario


class Row(NamedTuple):
    """The rounds of one operation and one kind of fault.

    Attributes:
        scenario: its name.
        operation: its name.
        kind: of faults.
        tried: rounds whose fault was reached.
        raised: operations that failed with an error of the system's or pparallel's.
        recovered: operations that succeeded in spite of the fault.
        lost: members that were reported lost, as the fault allows.
        failed: rounds with any other end.
    """

    scenario: str
    operation: str
    kind: str
    tried: int
    raised: int
    recovered: int
    lost: int
    failed: int


class Report(NamedTuple):
    """What came of a scenario.

    Attributes:
        scenario: which.
        outcomes: of all rounds.
        stacks: those of what was stuck.
    """

    scenario: Scenario
    outcomes: list[Outcome]
    stacks: str = ""

    def rows(self) -> list[Row]:
        """Return the table, without the kinds of which an operation makes no call."""
        keys = dict.fromkeys((each.fault.operation, each.fault.kind) for each in self.outcomes)
        return [row for row in (self._row(*key) for key in keys) if row.tried]

    def _row(self, operation: str, kind: str) -> Row:
        found = [
            each.outcome
            for each in self.outcomes
            if each.fault[:2] == (operation, kind) and each.outcome != UNREACHED
        ]
        raised, recovered, lost = (found.count(each) for each in GOOD)
        failed = len(found) - raised - recovered - lost
        name = self.scenario.name
        return Row(name, operation, kind, len(found), raised, recovered, lost, failed)

    def failures(self) -> list[Outcome]:
        """Return the rounds that did not end as they should."""
        return [each for each in self.outcomes if not each.is_good]


def run_scenario(
    scenario: Scenario,
    *,
    share: int = 1,
    kinds: Sequence[str] = (),
    plan: Iterable[Fault] | None = None,
    bound: float = BOUND,
    progress: Callable[[str], object] | None = None,
) -> Report:
    """Run the rounds of *scenario* and report them.

    Args:
        scenario: what to run.
        share: one in how many rounds is run.
        kinds: of the faults to try; by default all.
        plan: the faults to try, in place of all.
        bound: seconds after which an operation is stuck.
        progress: called with a line now and then.
    """
    chosen = None if plan is None else tuple(plan)
    with tempfile.TemporaryDirectory(prefix="anomalies-") as folder:
        order = Order(scenario, folder, share, tuple(kinds), chosen, bound)
        journal = Journal(folder)
        for _ in range(_STARTS):
            before = len(journal.read())
            _run_process(order, journal, progress)
            _show_failures(journal.read()[before:], progress)
            if journal.is_complete:
                break
            _settle(journal, before, Path(folder, "output"))
        stacks = "".join(
            each.read_text() for each in Path(folder).glob("*stacks") if each.stat().st_size < 1e7
        )
        return Report(scenario, journal.read(), stacks)


def _run_process(order: Order, journal: Journal, progress: Callable[[str], object] | None) -> None:
    program = f"from {__package__}.rounds import main; main({order.to_json()!r})"
    command = [sys.executable, "-X", "faulthandler", "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with Path(order.folder, "output").open("a") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        size, since, told = -1, time.monotonic(), time.monotonic()
        try:
            while not _has_ended(process):
                if (now := journal.path.stat().st_size) != size:
                    size, since = now, time.monotonic()
                if time.monotonic() - since > _SILENCE * order.bound:
                    break
                if progress is not None and time.monotonic() - told > 5:
                    told = time.monotonic()
                    progress(f"{order.scenario.name}: {len(journal.read())} rounds")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _show_failures(found: list[Outcome], progress: Callable[[str], object] | None) -> None:
    for each in found:
        if progress is not None and not each.is_good:
            progress(f"{each.outcome.upper()} {each.fault}: {each.error}\n{each.where}")


def _has_ended(process: subprocess.Popen[Any]) -> bool:
    try:
        process.wait(0.1)
    except subprocess.TimeoutExpired:
        return False
    return True


def _settle(journal: Journal, before: int, output: Path) -> None:
    """Note the end of a round that a process has not survived, so that it is not tried again."""
    found = journal.read()
    if found and found[-1].outcome == "stuck":
        last = found[-1]
        journal.write(fault=last.fault, outcome="stuck", error=output.read_text()[-2000:])
    elif len(found) == before:
        raise RuntimeError(f"no round could be run:\n{output.read_text()[-6000:]}")


def table(reports: Iterable[Report]) -> str:
    """Return the rows of *reports*, and a sum, as text."""
    rows = [each for report in reports for each in report.rows()]
    head = ("scenario", "operation", "kind", "tried", "raised", "recovered", "lost", "failed")
    sums = [sum(each[column] for each in rows) for column in range(3, 8)]  # type: ignore[misc]
    lines: list[tuple[object, ...]] = [head, *rows, ("all", "", "", *sums)]
    widths = [max(len(str(each[column])) for each in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            str(cell).ljust(width) if at < 3 else str(cell).rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
