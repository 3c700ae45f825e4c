"""What is written: one document for each benchmark, as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness.figures import Row
from benchmarks.harness.machine import line
from benchmarks.harness.pinning import PINS

_HEAD = (
    "contest",
    "cores",
    "figure",
    "ours",
    "",
    "peer",
    "",
    "times",
    "quartiles",
    "aim",
    "reached",
)


@dataclass(frozen=True)
class Played:
    """One contest that was run, pinned in one way."""

    contest: str
    pin: str
    others: float
    rows: list[Row]
    left_out: Mapping[str, str]

    def plain(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {**vars(self), "rows": [row.plain() for row in self.rows]}


@dataclass
class Report:
    """All that one benchmark found."""

    benchmark: str
    about: str
    machine: dict[str, object]
    before: dict[str, object]
    quick: bool
    after: dict[str, object] = field(default_factory=dict)
    played: list[Played] = field(default_factory=list)

    def plain(self) -> dict[str, object]:
        """Return it as JSON has it."""
        plain = {**vars(self), "played": [each.plain() for each in self.played]}
        missed = [row for each in self.played for row in each.rows if row.reached == "no"]
        return {**plain, "missed": len(missed)}

    def markdown(self) -> str:
        """Return it to be read."""
        lines = [f"## {self.benchmark}", "", self.about, "", self._circumstances(), ""]
        lines += [_line(_HEAD), _line(["---"] * len(_HEAD))]
        lines += [_line(_cells(each, row)) for each in self.played for row in each.rows]
        pins = dict.fromkeys(each.pin for each in self.played)
        lines += ["", "Cores: " + "; ".join(f"`{pin}`: {PINS[pin]}" for pin in pins) + "."]
        lines += _left_out(self.played)
        return "\n".join(lines) + "\n"

    def _circumstances(self) -> str:
        versions = ", ".join(f"{k} {v}" for k, v in self.machine["versions"].items())  # type: ignore[attr-defined]
        machine = (
            f"{self.machine['cores']} cores, {self.machine['memory_gib']} GiB, "
            f"{self.machine['system']}, Python {self.machine['python']}, {versions}."
        )
        busiest = max((each.others for each in self.played), default=0.0)
        busy = f"Others used up to {busiest:.0%} of the cores during a contest."
        quick = " A quick run: the figures mean nothing." if self.quick else ""
        states = f"Before: {line(self.before)}. After: {line(self.after)}."
        return f"{machine} {states} {busy}{quick}"


def _left_out(played: Sequence[Played]) -> list[str]:
    """Return a line for each contender that was not there."""
    told = [(name, why) for each in played for name, why in each.left_out.items()]
    return [each for name, why in dict.fromkeys(told) for each in ("", f"Left out: {name}: {why}.")]


def _cells(played: Played, row: Row) -> list[str]:
    return [
        played.contest,
        played.pin,
        row.metric,
        row.ours,
        shown(row.own.median, row.metric),
        row.peer,
        shown(row.other.median, row.metric),
        f"{row.ratio:.2f}",
        f"{row.lower:.2f} to {row.upper:.2f}",
        "" if row.aim is None else f"{row.aim:g}",
        row.reached,
    ]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def shown(figure: float, metric: str) -> str:
    """Return a figure with the unit that suits it."""
    if metric.startswith("memory"):
        return f"{figure / 2**20:,.0f} MiB"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if figure >= size:
            return f"{figure / size:.2f} {unit}"
    return f"{figure * 1e6:.2f} us"
