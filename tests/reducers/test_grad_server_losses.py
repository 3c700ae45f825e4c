"""No gradient vanishes: members are killed at random, and the books are compared by ids."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, crew
from reducing_programs import Books, Doubt

from pparallel.testing.patience import PATIENCE, until
from pparallel_reducers import GradServerReducerConfig

COUNT = 30  #: gradients that each member pushes
NAMES = ("ps", "a", "b", "c")
TRAINING = NAMES[1:]


def noted(members: Crew, what: str) -> dict[str, bytes]:
    """Return what each member has written of its gradients, a byte for each."""
    files = {each: members.note(f"{what} {each}") for each in TRAINING}
    return {name: file.read_bytes() if file.exists() else b"" for name, file in files.items()}


def disturb(members: Crew, plan: random.Random, secondaries: tuple[str, ...]) -> set[str]:
    """Kill some members, and make others slow; return whom it killed."""
    victims = plan.sample(TRAINING, plan.choice([0, 1, 2]))
    if plan.random() < 0.5 and (holders := {*secondaries} - {"ps", *victims}):
        victims = [plan.choice(sorted(holders)), *victims][:2]
    moments = sorted(plan.randrange(1, COUNT * 2) for _ in range(4))
    deeds = [*victims, *(None for _ in moments)][: len(moments)]
    plan.shuffle(deeds)
    for moment, victim in zip(moments, deeds, strict=True):
        _wait_for(members, moment)
        threading.Event().wait(plan.random() * 0.02)  # in the middle of something
        if victim is not None:
            members.kill(victim)
        elif (slow := plan.choice(secondaries)) not in victims:
            members.signal(slow, signal.SIGSTOP)
            threading.Event().wait(0.2)
            members.signal(slow, signal.SIGCONT)
    return set(victims)


def _wait_for(members: Crew, moment: int) -> None:
    """Wait until so many gradients were sent, or no more will be."""

    def is_time() -> bool:
        sent = {name: len(each) for name, each in noted(members, "sent").items()}
        waits = (
            members.processes[each].ended() is None and number < COUNT
            for each, number in sent.items()
        )
        return sum(sent.values()) >= moment or not any(waits)

    until(is_time, f"{moment} gradients were not sent")


def run(folder: Path, transport: dict[str, Any], seed: int) -> None:
    plan = random.Random(seed)
    secondaries = plan.choice([("a", "b"), ("a", "b"), ("a", "b", "ps"), ("b",), ("ps",)])
    config = GradServerReducerConfig(
        secondaries=secondaries,
        reduce_batch_size=plan.choice([1, 2, 5]),
        max_queue_size=plan.choice([1, 4]),
        max_staleness=plan.choice([None, None, 1, 3]),
        reduce_method="sum",
    )
    pulls, slow = config.max_staleness is not None, plan.choice([0.0, 0.01, 0.03])
    doubts = {
        each: Doubt(plan.randrange(COUNT // 2), plan.choice([0.0, 0.2, 0.2]))
        for each in plan.sample(TRAINING, 2)
    }
    with crew(folder, transport, NAMES) as members:
        for name in NAMES:
            members.start(
                name,
                "reducing_programs:push_ids",
                COUNT,
                folder,
                pulls,
                slow,
                doubts.get(name),
                reducer=config,
            )
        killed = disturb(members, plan, secondaries)
        for name in NAMES:
            members.processes[name].ended(PATIENCE)
        killed |= {each for each in NAMES if (folder / f"killed {each}").exists()}
        books = {name: members.outcome(name).result for name in NAMES if name not in killed}
        accepted = {
            name: {number for number, each in enumerate(notes) if each == ord("+")}
            for name, notes in noted(members, "acked").items()
        }
        sent = {name: len(each) for name, each in noted(members, "sent").items()}
        check(books, sent, accepted, killed & set(secondaries))
        if config.max_staleness is not None:
            assert books["ps"].counters.staleness <= config.max_staleness


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


@pytest.mark.costly
@pytest.mark.parametrize("seed", range(14))
def test_acknowledged_is_within_reduced_within_sent(tmp_path: Path, seed: int) -> None:
    run(tmp_path, {"backend": "ipc"}, seed)


@pytest.mark.costly
@pytest.mark.parametrize("seed", range(14, 20))
def test_so_it_is_on_zmq(tmp_path: Path, seed: int) -> None:
    run(tmp_path, {"backend": "zmq"}, seed)
