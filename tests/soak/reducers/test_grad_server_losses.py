"""No gradient vanishes: members are killed at random, and the books are compared by ids."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, crew
from gradient_books import COUNT, NAMES, TRAINING, check, collect, noted, start
from reducing_programs import Doubt

from pparallel.testing.patience import PATIENCE, until
from pparallel_reducers import GradServerReducerConfig


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


def run(folder: Path, transport: dict[str, Any], plan: random.Random) -> None:
    secondaries = plan.choice([("a", "b"), ("a", "b"), ("a", "b", "ps"), ("b",), ("ps",)])
    config = GradServerReducerConfig(
        secondaries=secondaries,
        reduce_batch_size=plan.choice([1, 2, 5]),
        max_queue_size=plan.choice([1, 4]),
        max_staleness=plan.choice([None, None, 1, 3]),
        reduce_method="sum",
    )
    slow = plan.choice([0.0, 0.01, 0.03])
    doubts = {
        each: Doubt(plan.randrange(COUNT // 2), plan.choice([0.0, 0.2, 0.2]))
        for each in plan.sample(TRAINING, 2)
    }
    with crew(folder, transport, NAMES) as members:
        start(members, folder, config, slow, doubts)
        killed = disturb(members, plan, secondaries)
        for name in NAMES:
            members.processes[name].ended(PATIENCE)
        killed |= {each for each in NAMES if (folder / f"killed {each}").exists()}
        books, sent, acked = collect(members, killed)
        check(books, sent, acked, killed & set(secondaries))
        if config.max_staleness is not None:
            assert books["ps"].counters.staleness <= config.max_staleness


@pytest.mark.parametrize("transport", ["ipc", "zmq"])
def test_acknowledged_is_within_reduced_within_sent(
    tmp_path: Path, rounds: Any, transport: str
) -> None:
    for number, plan in enumerate(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        run(folder, {"backend": transport}, plan)
