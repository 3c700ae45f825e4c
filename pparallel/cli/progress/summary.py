"""How a job went, told when it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pparallel.cli.columns import aligned
from pparallel.cli.progress import short
from pparallel.cli.progress.tally import Standing, Tally

if TYPE_CHECKING:
    from rich.console import RenderableType


class Summary:
    """What a tally has counted, for people and for programs.

    Attributes:
        standings: how each member ended, by rank.
        lost: the members that others have lost, and why.
    """

    def __init__(self, tally: Tally) -> None:
        self.standings = tally.standings()
        self.lost = tally.lost

    def to_dict(self) -> dict[str, Any]:
        """Return the members by name, as JSON knows it."""
        return {each.name: _plain(each) for each in self.standings}

    def text(self) -> list[str]:
        """Return lines: a table of the members, then what concerns all of them."""
        rows: list[tuple[str, ...]] = [("MEMBER", "STATE", "STEPS", "RATE", "SECONDS", "TASKS")]
        rows += [(each.name, *_cells(each)) for each in self.standings]
        if not any(each.tasks.queued for each in self.standings):
            rows = [row[:-1] for row in rows]
        return [*aligned(rows), *self.totals()]

    def totals(self) -> list[str]:
        """Return a line for each reducer, and one for each member that was lost."""
        reducers: dict[str, Counter[str]] = {}
        for each in self.standings:
            for name, counts in each.gradients.items():
                reducers.setdefault(name, Counter()).update(counts)
        lines = [
            f"gradients of {name}: " + ", ".join(f"{n} {what}" for what, n in counts.items())
            for name, counts in reducers.items()
        ]
        return lines + [f"lost {name}: {short.line(why, 200)}" for name, why in self.lost.items()]

    def renderable(self, results: Mapping[str, str]) -> RenderableType:
        """Return the same for a terminal, with what each member returned."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        from pparallel.cli.progress.rows import STATE_STYLES, member_style

        table = Table(box=None, pad_edge=False, header_style="dim")
        with_tasks = any(each.tasks.queued for each in self.standings)
        for name in ("member", "state", "steps", "rate", "seconds", *_if(with_tasks, "tasks")):
            justify = "left" if name in ("member", "state") else "right"
            table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
        table.add_column("result", overflow="fold")
        for each in self.standings:
            state, *numbers, tasks = _cells(each)
            table.add_row(
                Text(each.name, style=member_style(each.rank)),
                Text(state, style=STATE_STYLES[each.state]),
                *map(Text, (*numbers, *_if(with_tasks, tasks))),
                Text(results.get(each.name, "")),
            )
        return Group(table, *map(Text, self.totals()))


def _if(wanted: bool, cell: str) -> Sequence[str]:
    return (cell,) if wanted else ()


def _cells(standing: Standing) -> tuple[str, str, str, str, str]:
    tasks = standing.tasks
    return (
        standing.state,
        "-" if standing.steps is None else short.number(standing.steps),
        short.rate(standing.mean),
        "-" if standing.seconds is None else f"{standing.seconds:.2f}",
        short.tasks(tasks.wanted, tasks.done, tasks.failed) or "-",
    )


def _plain(standing: Standing) -> dict[str, Any]:
    found: dict[str, Any] = {
        "state": standing.state,
        "steps": standing.steps,
        "rate": None if standing.mean is None else round(standing.mean, 3),
        "seconds": None if standing.seconds is None else round(standing.seconds, 6),
    }
    if standing.why:
        found["error"] = standing.why
    if standing.gradients:
        found["gradients"] = {name: dict(each) for name, each in standing.gradients.items()}
    return found
