"""Tallies of what events tell of a job."""

from __future__ import annotations

from pparallel.cli.progress.tally import Tally
from pparallel.runtime.events import Event


def tally_of(*events: Event, names: tuple[str, ...] = ("a", "b")) -> Tally:
    tally = Tally(names)
    for each in events:
        tally.hear(each)
    return tally
