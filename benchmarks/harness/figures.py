"""Medians, quartiles and ratios, and whether an aim was reached."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median, quantiles

from benchmarks.harness.contest import Contest
from benchmarks.harness.rounds import Measured


@dataclass(frozen=True)
class Figure:
    """What a contender's rounds come to."""

    median: float
    lower: float
    upper: float
    rounds: int

    @classmethod
    def of(cls, values: list[float]) -> Figure:
        """Sum up one figure per round."""
        lower, middle, upper = (
            quantiles(values, n=4, method="inclusive") if values[1:] else (values * 3)
        )
        return cls(middle, lower, upper, len(values))


@dataclass(frozen=True)
class Row:
    """Ours beside one peer in one metric.

    Attributes:
        ours: The name of ours.
        peer: The name of the peer.
        metric: What is compared; less is better in all.
        own: Our figure.
        other: The peer's.
        ratio: The peer's median over ours: how many times as good ours is.
        lower: The lower quartile of the ratios of the single rounds.
        upper: Their upper quartile.
        aim: What the ratio has to reach, if anything.
    """

    ours: str
    peer: str
    metric: str
    own: Figure
    other: Figure
    ratio: float
    lower: float
    upper: float
    aim: float | None

    @property
    def reached(self) -> str:
        """Say whether the aim was reached, or whether a quarter of the rounds reached it."""
        if self.aim is None:
            return ""
        if self.ratio >= self.aim:
            return "yes"
        return "nearly" if self.upper >= self.aim else "no"

    def plain(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {**asdict(self), "reached": self.reached}


def rows(contest: Contest, measured: Measured) -> list[Row]:
    """Compare every pair of a contest in all that was measured of both."""
    first = next(iter(contest.contenders))
    aims = {(aim.ours or first, aim.peer, aim.metric): aim.at_least for aim in contest.aims}
    found = [
        _row(ours, peer, metric, measured, aims.pop((ours, peer, metric), None))
        for ours, peer in contest.pairs()
        for metric in measured[ours]
        if metric in measured[peer]
    ]
    if aims:
        raise ValueError(f"nothing was measured for the aims {sorted(aims)}")
    return found


def _row(ours: str, peer: str, metric: str, measured: Measured, aim: float | None) -> Row:
    own, other = measured[ours][metric], measured[peer][metric]
    single = Figure.of([b / a if a else float("inf") for a, b in zip(own, other, strict=True)])
    divisor = median(own)
    ratio = median(other) / divisor if divisor else float("inf")
    return Row(
        ours, peer, metric, Figure.of(own), Figure.of(other), ratio, single.lower, single.upper, aim
    )
