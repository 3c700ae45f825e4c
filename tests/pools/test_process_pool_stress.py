"""Workers killed at random, several pools at once, and streams of tensors in bounded memory."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_backends import each_backend, gate_in, pool_of

from pparallel.errors import ClosedError, WorkerLostError
from pparallel.testing.gate import Gate
from pparallel.testing.patience import until
from pparallel.testing.pool.isolation import end_of, ends_of
from pparallel.testing.pool.tasks import (
    KEPT,
    hoard,
    keep,
    note,
    note_and_call,
    noted,
    own_pid,
    pause,
    same,
)

pytestmark = pytest.mark.costly

LIMIT = 60.0
LIGHT = (__name__,)
TORCH = ("numpy", "torch", __name__)  # for tests that send tensors

Scale = Callable[[int], int]


@contextmanager
def mortal(
    backend: str,
    started: Path,
    seed: int,
    pause: float = 0.005,
    preload: tuple[str, ...] = LIGHT,
    **options: Any,
) -> Iterator[tuple[Any, list[int]]]:
    """A pool whose workers are killed now and then; gives the pids of those that were.

    Each task is to note its worker in *started*. Nobody else is killed: a pool of which three
    workers in a row cannot start is given up, as it should be.
    """

    def run() -> None:
        chance = random.Random(seed)
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


@each_backend
def test_workers_killed_at_random(backend: str, tmp_path: Path, scale: Scale) -> None:
    rounds, started = scale(2000) // 4, tmp_path / "started"
    run = partial(note_and_call, started, work, tmp_path / "notes")
    with mortal(backend, started, 1) as (pool, killed):
        found = ends([pool.submit(run, each) for each in range(rounds)])
        found += ends_of(pool.imap(run, range(rounds, 2 * rounds)), rounds, LIMIT)
        later = ends_of(pool.imap_unordered(run, range(2 * rounds, 3 * rounds)), rounds, LIMIT)
        until(lambda: bool(killed), "nobody was killed")
        found += ends([pool.map_async(run, [each]) for each in range(3 * rounds, 4 * rounds)])
    order = [*range(2 * rounds), *range(3 * rounds, 4 * rounds)]
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
    assert set(values) <= set(range(2 * rounds, 3 * rounds))
    starts = Counter(map(int, noted(tmp_path / "notes")))
    assert max(starts.values()) == 1, "a task was started twice"
    lost += len(later) - len(values)
    assert len(starts) >= 4 * rounds - lost


@each_backend
def test_with_retries_all_succeed(backend: str, tmp_path: Path, scale: Scale) -> None:
    rounds, started = scale(2000) // 4, tmp_path / "started"
    run = partial(note_and_call, started, work, tmp_path / "notes")
    with mortal(backend, started, 2, retries=1000) as (pool, killed):
        handles = [pool.submit(run, each) for each in range(rounds)]
        mapped = pool.map_async(run, range(rounds, 2 * rounds))
        assert list(pool.imap(run, range(2 * rounds, 3 * rounds))) == [
            -each for each in range(2 * rounds, 3 * rounds)
        ]
        until(lambda: bool(killed), "nobody was killed")
        unordered = sorted(pool.imap_unordered(run, range(3 * rounds, 4 * rounds)))
        assert unordered == [-each for each in reversed(range(3 * rounds, 4 * rounds))]
        assert mapped.get(LIMIT) == [-each for each in range(rounds, 2 * rounds)]
        assert ends(handles) == [-each for each in range(rounds)]
    assert set(map(int, noted(tmp_path / "notes"))) == set(range(4 * rounds))


@each_backend
def test_two_pools_at_once_and_one_loses_workers(
    backend: str, tmp_path: Path, scale: Scale
) -> None:
    rounds, started = scale(2000), tmp_path / "started"
    with pool_of(backend) as sound, mortal(backend, started, 3, retries=1000) as (dying, killed):
        task = partial(note_and_call, started, same)
        mine, theirs = sound.imap(same, range(rounds)), dying.imap(task, range(rounds))
        for each in range(rounds):
            assert next(mine) == each
            assert next(theirs) == each
        assert list(mine) == list(theirs) == []
        until(lambda: bool(killed), "nobody was killed")
        assert sound.map(same, range(rounds)) == dying.map(task, range(rounds))


@each_backend
def test_tensors_while_workers_are_killed(backend: str, tmp_path: Path, scale: Scale) -> None:
    """Every holder of a shared block dies at some time; what the living hold never changes."""
    torch = pytest.importorskip("torch")
    held: list[tuple[Any, float]] = []
    chance = random.Random(4)
    started = tmp_path / "started"
    with mortal(backend, started, 5, 0.03, TORCH) as (pool, killed):
        for value in range(scale(200)):
            tensor = torch.full((chance.choice((100, 20_000, 100_000, 1_000_000)),), float(value))
            tasks = (same, keep, add_one)
            handles = [pool.submit(note_and_call, started, each, tensor) for each in tasks]
            wanted = (value, value, value + 1)
            for handle, expected in zip(handles, wanted, strict=True):
                if not isinstance(handle.exception(LIMIT), WorkerLostError):
                    held.append((handle.result(0), float(expected)))
            del handles, handle
            assert bool((tensor == value).all())
            for result, number in chance.sample(held, min(3, len(held))):
                assert bool((result == number).all())
            del held[: max(0, len(held) - 40)]
            if not killed:  # at least one, however quick the machine is
                until(lambda: bool(killed), "nobody was killed")
    assert all(bool((each == expected).all()) for each, expected in held)


@each_backend
def test_every_holder_of_a_block_dies_in_turn(backend: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(1_000_000)

    def ask(task: Callable[..., Any]) -> list[Any]:
        with gate_in(tmp_path / f"gate-{len(list(tmp_path.iterdir()))}") as gate:
            answers = pool.starmap_async(task, [(gate, tensor)] * 3)
            gate.arrived(3)
            gate.open()
            return list(answers.get(LIMIT))

    with pool_of(backend, 3, TORCH) as pool:
        kept = dict(ask(keep_and_return))
        holders = set(kept)
        for pid in tuple(holders):
            os.kill(pid, signal.SIGKILL)
            holders.discard(pid)
            found = dict(ask(sum_of_kept))
            until(lambda: pid not in pool.pids(), "the dead worker stayed")  # noqa: B023
            assert {each: found[each] for each in holders} == dict.fromkeys(holders, SUM)
            for each in kept.values():  # those of the dead as well, here and sent on
                assert int(each.sum()) == int(pool.apply(same, (each,)).sum()) == SUM
        assert int(tensor.sum()) == SUM


SUM = 1_000_000 * 999_999 // 2


def keep_and_return(gate: Gate, tensor: Any) -> tuple[int, Any]:
    keep(tensor)
    return own_pid(gate), tensor


def sum_of_kept(gate: Gate, _: Any) -> tuple[int, int | None]:
    gate.pass_through()
    return os.getpid(), int(KEPT[0].sum()) if KEPT else None


def add_one(tensor: Any) -> Any:
    tensor += 1
    return tensor


def footprint(pool: Any) -> int:
    """Bytes of memory of this process and the pool's workers, what they share counted once."""
    pids = [os.getpid(), *pool.pids()]
    return sum(int(psutil.Process(pid).memory_full_info().pss) for pid in pids)


@each_backend
@pytest.mark.timeout(600)
def test_a_stream_of_tensors_in_bounded_memory(backend: str, scale: Scale) -> None:
    torch = pytest.importorskip("torch")
    size, most = 4 << 20, 0

    def tensors() -> Iterator[Any]:
        for each in range(scale(10 << 30) // size):
            yield torch.full((size // 4,), float(each))

    with pool_of(backend, preload=TORCH) as pool:
        pool.map(same, [torch.ones(10)] * 4)  # torch is there, in the workers too
        before = footprint(pool)
        for at, result in enumerate(pool.imap(add_one, tensors())):
            assert float(result[0]) == float(result[-1]) == at + 1
            if at % 20 == 0:
                most = max(most, footprint(pool))
        assert at + 1 == scale(10 << 30) // size
    assert most - before < 700 << 20, f"{(most - before) >> 20} MB more"


@each_backend
def test_memory_is_flat(backend: str, scale: Scale) -> None:
    """Echoes of 64 MB, kept by nobody; and workers that die while they hold blocks."""
    torch = pytest.importorskip("torch")
    tensor = torch.ones(16 << 20)
    with pool_of(backend, 1, TORCH) as pool:

        def echo() -> None:
            assert float(pool.apply(same, (tensor,))[-1]) == 1.0

        for _ in range(3):
            echo()
        before = footprint(pool)
        for _ in range(scale(200)):
            echo()
        assert footprint(pool) - before < 100 << 20
        for _ in range(scale(60)):
            pool.apply(keep, (tensor,))  # the worker holds what it is sent, and dies of it
            assert isinstance(pool.submit(os._exit, 1).exception(LIMIT), WorkerLostError)
        echo()
        assert footprint(pool) - before < 200 << 20


@each_backend
def test_two_threads_kill_and_stop(backend: str, tmp_path: Path) -> None:
    """Terminating while workers die and calls come in ends everything, and hangs nobody."""
    for seed in range(2):
        started = tmp_path / f"started-{seed}"
        with (
            gate_in(tmp_path / f"gate-{seed}") as gate,
            mortal(backend, started, seed) as (pool, _),
        ):
            handles = [pool.submit(note_and_call, started, pause, 0.002) for _ in range(200)]
            handles.append(pool.submit(gate.pass_through))
            handles[seed * 10].wait(LIMIT)
            pool.terminate()
        assert all(each.done() for each in handles)
        assert isinstance(handles[-1].exception(0), ClosedError | WorkerLostError)


@each_backend
def test_workers_of_any_size_are_replaced(backend: str) -> None:
    with pool_of(backend, size=4, max_rss="100MB") as pool:
        sizes = [1 << 20, 150 << 20] * 4
        pids = pool.map(hoard, sizes)
        assert len(set(pids)) >= 2
        until(lambda: not set(pids[1::2]) & set(pool.pids()), "large workers were not replaced")
        assert pool.map(same, range(100)) == list(range(100))
