"""The live rows: one for each member, as many as there is room for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from pparallel.cli.progress import short
from pparallel.cli.progress.counting import State
from pparallel.cli.progress.tally import Standing

SETTLED = 2.0  #: seconds within which all who told of something count as equally active

STATE_STYLES: dict[State, str] = {
    "waiting": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "bold red",
    "stopped": "yellow",
}
_MEMBER_STYLES = ("magenta", "blue", "bright_cyan", "bright_magenta", "bright_blue")


def member_style(rank: int) -> str:
    """Return the colour of a member's name."""
    return _MEMBER_STYLES[rank % len(_MEMBER_STYLES)]


def live(standings: Sequence[Standing], room: int) -> RenderableType:
    """Return the rows of a job, of which at most *room* fit, the heading included."""
    shown = chosen(standings, room - 1, time.time())
    hidden = [each for each in standings if each not in shown]
    table = _table(shown)
    if not hidden:
        return table
    return Group(table, Text(rest(hidden), style="dim", no_wrap=True, overflow="ellipsis"))


def chosen(standings: Sequence[Standing], room: int, now: float) -> list[Standing]:
    """Return those to show, by rank: all, or the most recently active and a line for the rest."""
    if len(standings) <= room:
        return list(standings)
    by_activity = sorted(
        standings, key=lambda each: (max(0, now - each.active) // SETTLED, each.rank)
    )
    return sorted(by_activity[: max(0, room - 1)], key=lambda each: each.rank)


def rest(hidden: Sequence[Standing]) -> str:
    """Return a line about members that have none of their own."""
    states = Counter(each.state for each in hidden)
    order: tuple[State, ...] = ("failed", "stopped", "running", "waiting", "done")
    counts = ", ".join(f"{states[each]} {each}" for each in order if states[each])
    return f"... and {len(hidden)} more: {counts}"


def _table(shown: Sequence[Standing]) -> Table:
    with_tasks = any(each.tasks.queued for each in shown)
    columns = [
        Column("member", min_width=6, max_width=24),
        Column("state", min_width=7),
        Column("steps", justify="right", min_width=5),
        Column("rate", justify="right", min_width=7),
        Column("elapsed", justify="right", min_width=7),
        *([Column("tasks", justify="right", min_width=7)] if with_tasks else []),
        Column("reports", ratio=1),
    ]
    for column in columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    table = Table(*columns, box=None, expand=True, pad_edge=False, header_style="dim")
    for each in shown:
        table.add_row(
            Text(short.line(each.name, 200), style=member_style(each.rank)),
            Text(each.state, style=STATE_STYLES[each.state]),
            "-" if each.steps is None else short.number(each.steps),
            short.rate(each.rate) if each.state == "running" else short.rate(each.mean),
            "-" if each.seconds is None else short.clock(each.seconds),
            *([_tasks(each)] if with_tasks else []),
            Text(_reports(each), style="red" if each.why else ""),
        )
    return table


def _tasks(standing: Standing) -> str:
    tasks = standing.tasks
    return short.tasks(tasks.wanted, tasks.done, tasks.failed)


def _reports(standing: Standing) -> str:
    return standing.why or " ".join(f"{key}={each}" for key, each in standing.values.items())
