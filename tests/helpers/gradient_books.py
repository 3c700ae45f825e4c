"""What members that push gradients with ids have sent, acknowledged and reduced."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from crew import Crew
from reducing_programs import Books, Doubt

from pparallel_reducers import GradServerReducerConfig

COUNT = 30  #: gradients that each member pushes
NAMES = ("ps", "a", "b", "c")
TRAINING = NAMES[1:]


def start(
    members: Crew,
    folder: Path,
    config: GradServerReducerConfig,
    slow: float = 0.0,
    doubts: Mapping[str, Doubt] = {},
) -> None:
    """Have all members push; see :func:`reducing_programs.push_ids`."""
    pulls = config.max_staleness is not None
    for name in NAMES:
        given = COUNT, folder, pulls, slow, doubts.get(name)
        members.start(name, "reducing_programs:push_ids", *given, reducer=config)


def noted(members: Crew, what: str) -> dict[str, bytes]:
    """Return what each member has written of its gradients, a byte for each."""
    files = {each: members.note(f"{what} {each}") for each in TRAINING}
    return {name: file.read_bytes() if file.exists() else b"" for name, file in files.items()}


def collect(
    members: Crew, killed: set[str]
) -> tuple[dict[str, Books], dict[str, int], dict[str, set[int]]]:
    """Return the books of the members that live, and what each has sent and got acknowledged."""
    books = {name: members.outcome(name).result for name in NAMES if name not in killed}
    accepted = {
        name: {number for number, each in enumerate(notes) if each == ord("+")}
        for name, notes in noted(members, "acked").items()
    }
    return books, {name: len(each) for name, each in noted(members, "sent").items()}, accepted


def check(
    books: dict[str, Books], sent: dict[str, int], acked: dict[str, set[int]], dead: set[str]
) -> None:
    """Compare what was sent, acknowledged and reduced; *dead* are secondaries that were killed."""
    ps = books["ps"]
    assert {value for row in ps.ids for value in row} <= {0.0, 1.0}, "some were reduced twice"
    total = sum(map(sum, ps.ids))
    assert ps.bulk == {total}, "a gradient was summed in part"
    assert ps.counters.reduced == ps.reduced == total
    assert all(each.ids == ps.ids for each in books.values()), "not all have the final parameters"
    for rank, name in enumerate(NAMES[1:], start=1):
        reduced = {number for number, value in enumerate(ps.ids[rank]) if value}
        assert reduced <= set(range(sent[name])), f"{name} has not sent all that was reduced"
        missing = acked[name] - reduced
        assert not missing or dead, f"acknowledged gradients of {name} vanished: {missing}"
        if (own := books.get(name)) is not None:
            assert own.counters.pushed == len(acked[name])
            assert own.counters.lost == own.lost == len(missing), name
            assert reduced <= acked[name], "what a push refused, or raised for, was reduced"
            assert own.ended or sent[name] == COUNT
