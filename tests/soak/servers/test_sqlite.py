"""Processes that share an ordered server's file, which are killed, fork and meet at random."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from process_children import line, outcome
from sqlite_children import assert_whole, running, survives_a_kill
from sqlite_programs import server_at


def test_what_was_acknowledged_survives_a_kill(
    tmp_path: Path, rounds: Iterable[random.Random]
) -> None:
    """One pusher after another is killed at some moment, and the next goes on from there."""
    newest = 0
    for rng in rounds:
        pushes, later = rng.randrange(1, 8), rng.random() * 0.02
        newest = survives_a_kill(tmp_path / "values.db", newest, pushes, later)


def test_processes_lose_no_update(tmp_path: Path, rounds: Iterable[random.Random]) -> None:
    """Each round with a file that they make at once."""
    for number, rng in enumerate(rounds):
        path, times, processes = tmp_path / f"{number}.db", rng.randrange(1, 300), rng.randint(2, 6)
        with ExitStack() as stack:
            each = [
                stack.enter_context(running("count", str(path), times)) for _ in range(processes)
            ]
            assert [line(reader) for _, reader in each] == ["done"] * processes
        with server_at(path) as server:
            assert server.pull("number") == (processes * times,) * 2
        assert_whole(path)


def test_forks_beside_threads_that_push(tmp_path: Path, rounds: Iterable[random.Random]) -> None:
    for number, rng in enumerate(rounds):
        path, forks = str(tmp_path / f"{number}.db"), rng.randrange(1, 50)
        program = f"import sqlite_programs; sqlite_programs.fork_often(say, {path!r}, {forks})"
        said, exit_ = outcome(program, preload=("sqlite_programs",))
        assert exit_.code == 0, said
        assert said == [str((forks, forks))]
