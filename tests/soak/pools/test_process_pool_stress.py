"""Workers killed at random, several pools at once, and streams of tensors in bounded memory."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_backends import each_backend, gate_in, pool_of

from pparallel.errors import ClosedError, WorkerLostError
from pparallel.testing.patience import until
from pparallel.testing.pool.isolation import end_of, ends_of
from pparallel.testing.pool.tasks import (
    keep,
    note,
    note_and_call,
    noted,
    pause,
    same,
)

LIMIT = 60.0
LIGHT = (__name__,)
TORCH = ("numpy", "torch", __name__)  # for tests that send tensors

Rounds = Iterable[random.Random]


@contextmanager
def mortal(
    backend: str,
    started: Path,
    chance: random.Random,
    pause: float = 0.005,
    preload: tuple[str, ...] = LIGHT,
    **options: Any,
) -> Iterator[tuple[Any, list[int]]]:
    """A pool whose workers are killed now and then; gives the pids of those that were.

    Each task is to note its worker in *started*. Nobody else is killed: a pool of which three
    workers in a row cannot start is given up, as it should be.
    """

    def run() -> None:
        while not ended.wait(chance.uniform(0, 2 * pause)):
            ready = set(map(int, noted(started))) - set(killed)
            if pids := sorted(ready & set(pool.pids())):
                killed.append(chance.choice(pids))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    killed: list[int] = []
    ended = threading.Event()
    thread = threading.Thread(target=run)
    with pool_of(backend, preload=preload, **options) as pool:
        thread.start()
        try:
            yield pool, killed
        finally:
            ended.set()
            thread.join()


def work(path: Path, number: int) -> int:
    note(path, number)
    if number % 7 == 0:
        pause(0.003)
    return -number


def ends(handles: list[Any]) -> list[object]:
    return [end_of(each, LIMIT) for each in handles]


MANY = 500  #: tasks of each kind of call in a round


@each_backend
def test_workers_killed_at_random(backend: str, tmp_path: Path, rounds: Rounds) -> None:
    for rng in rounds:
        directory = tmp_path / str(rng.getrandbits(32))
        directory.mkdir()
        _kill_at_random(backend, directory, rng)


def _kill_at_random(backend: str, directory: Path, rng: random.Random) -> None:
    started = directory / "started"
    run = partial(note_and_call, started, work, directory / "notes")
    with mortal(backend, started, rng) as (pool, killed):
        found = ends([pool.submit(run, each) for each in range(MANY)])
        found += ends_of(pool.imap(run, range(MANY, 2 * MANY)), MANY, LIMIT)
        later = ends_of(pool.imap_unordered(run, range(2 * MANY, 3 * MANY)), MANY, LIMIT)
        until(lambda: bool(killed), "nobody was killed")
        found += ends([pool.map_async(run, [each]) for each in range(3 * MANY, 4 * MANY)])
    order = [*range(2 * MANY), *range(3 * MANY, 4 * MANY)]
    lost = 0
    for at, end in zip(order, found, strict=True):
        if isinstance(end, WorkerLostError):
            lost += 1
            assert end.exitcode == -signal.SIGKILL
            assert end.pid in killed
        else:
            assert end in (-at, [-at])
    values = [-each for each in later if isinstance(each, int)]
    assert len(set(values)) == len(values)
    assert set(values) <= set(range(2 * MANY, 3 * MANY))
    starts = Counter(map(int, noted(directory / "notes")))
    assert max(starts.values()) == 1, "a task was started twice"
    lost += len(later) - len(values)
    assert len(starts) >= 4 * MANY - lost


@each_backend
def test_with_retries_all_succeed(backend: str, tmp_path: Path, rounds: Rounds) -> None:
    for rng in rounds:
        directory = tmp_path / str(rng.getrandbits(32))
        directory.mkdir()
        started, notes = directory / "started", directory / "notes"
        run = partial(note_and_call, started, work, notes)
        with mortal(backend, started, rng, retries=1000) as (pool, killed):
            handles = [pool.submit(run, each) for each in range(MANY)]
            mapped = pool.map_async(run, range(MANY, 2 * MANY))
            assert list(pool.imap(run, range(2 * MANY, 3 * MANY))) == [
                -each for each in range(2 * MANY, 3 * MANY)
            ]
            until(lambda: bool(killed), "nobody was killed")
            unordered = sorted(pool.imap_unordered(run, range(3 * MANY, 4 * MANY)))
            assert unordered == [-each for each in reversed(range(3 * MANY, 4 * MANY))]
            assert mapped.get(LIMIT) == [-each for each in range(MANY, 2 * MANY)]
            assert ends(handles) == [-each for each in range(MANY)]
        assert set(map(int, noted(notes))) == set(range(4 * MANY))


@each_backend
def test_two_pools_at_once_and_one_loses_workers(
    backend: str, tmp_path: Path, rounds: Rounds
) -> None:
    for rng in rounds:
        started = tmp_path / str(rng.getrandbits(32))
        task = partial(note_and_call, started, same)
        with (
            pool_of(backend) as sound,
            mortal(backend, started, rng, retries=1000) as (dying, killed),
        ):
            mine, theirs = sound.imap(same, range(MANY)), dying.imap(task, range(MANY))
            for each in range(MANY):
                assert next(mine) == each
                assert next(theirs) == each
            assert list(mine) == list(theirs) == []
            until(lambda: bool(killed), "nobody was killed")
            assert sound.map(same, range(MANY)) == dying.map(task, range(MANY))


@each_backend
def test_tensors_while_workers_are_killed(backend: str, tmp_path: Path, rounds: Rounds) -> None:
    """Every holder of a shared block dies at some time; what the living hold never changes."""
    torch = pytest.importorskip("torch")
    for rng in rounds:
        held: list[tuple[Any, float]] = []
        started = tmp_path / str(rng.getrandbits(32))
        with mortal(backend, started, rng, 0.03, TORCH) as (pool, killed):
            for value in range(50):
                size = rng.choice((100, 20_000, 100_000, 1_000_000))
                tensor = torch.full((size,), float(value))
                tasks = (same, keep, add_one)
                handles = [pool.submit(note_and_call, started, each, tensor) for each in tasks]
                wanted = (value, value, value + 1)
                for handle, expected in zip(handles, wanted, strict=True):
                    if not isinstance(handle.exception(LIMIT), WorkerLostError):
                        held.append((handle.result(0), float(expected)))
                del handles, handle
                assert bool((tensor == value).all())
                for result, number in rng.sample(held, min(3, len(held))):
                    assert bool((result == number).all())
                del held[: max(0, len(held) - 40)]
                if not killed:  # at least one, however quick the machine is
                    until(lambda: bool(killed), "nobody was killed")
        assert all(bool((each == expected).all()) for each, expected in held)


def add_one(tensor: Any) -> Any:
    tensor += 1
    return tensor


def footprint(pool: Any) -> int:
    """Bytes of memory of this process and the pool's workers, what they share counted once."""
    pids = [os.getpid(), *pool.pids()]
    return sum(int(psutil.Process(pid).memory_full_info().pss) for pid in pids)


@each_backend
def test_a_stream_of_tensors_in_bounded_memory(backend: str, rounds: Rounds) -> None:
    torch = pytest.importorskip("torch")
    size, most, count = 4 << 20, 0, 250

    def tensors() -> Iterator[Any]:
        for each in range(count):
            yield torch.full((size // 4,), float(each))

    with pool_of(backend, preload=TORCH) as pool:
        pool.map(same, [torch.ones(10)] * 4)  # torch is there, in the workers too
        before = footprint(pool)
        for _ in rounds:
            for at, result in enumerate(pool.imap(add_one, tensors())):
                assert float(result[0]) == float(result[-1]) == at + 1
                if at % 20 == 0:
                    most = max(most, footprint(pool))
            assert at + 1 == count
            assert most - before < 700 << 20, f"{(most - before) >> 20} MB more"


@each_backend
def test_memory_is_flat(backend: str, rounds: Rounds) -> None:
    """Echoes of 64 MB, kept by nobody; and workers that die while they hold blocks."""
    torch = pytest.importorskip("torch")
    tensor = torch.ones(16 << 20)
    with pool_of(backend, 1, TORCH) as pool:

        def echo() -> None:
            assert float(pool.apply(same, (tensor,))[-1]) == 1.0

        for _ in range(3):
            echo()
        before = footprint(pool)
        for _ in rounds:
            for _ in range(20):
                echo()
            assert footprint(pool) - before < 200 << 20
            for _ in range(6):
                pool.apply(keep, (tensor,))  # the worker holds what it is sent, and dies of it
                assert isinstance(pool.submit(os._exit, 1).exception(LIMIT), WorkerLostError)
            echo()
            assert footprint(pool) - before < 200 << 20


@each_backend
def test_two_threads_kill_and_stop(backend: str, tmp_path: Path, rounds: Rounds) -> None:
    """Terminating while workers die and calls come in ends everything, and hangs nobody."""
    for rng in rounds:
        directory = tmp_path / str(rng.getrandbits(32))
        directory.mkdir()
        started = directory / "started"
        with (
            gate_in(directory / "gate") as gate,
            mortal(backend, started, rng) as (pool, _),
        ):
            handles = [pool.submit(note_and_call, started, pause, 0.002) for _ in range(200)]
            handles.append(pool.submit(gate.pass_through))
            handles[rng.randrange(20)].wait(LIMIT)
            pool.terminate()
        assert all(each.done() for each in handles)
        assert isinstance(handles[-1].exception(0), ClosedError | WorkerLostError)
