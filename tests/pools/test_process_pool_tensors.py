"""Large data: shared with the workers or copied, and what happens where there is no room for it."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from held_blocks import keep_and_return, sum_of_kept
from process_backends import gate_in, pool_of

from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.pool.tasks import same

torch = pytest.importorskip("torch")

TORCH = ("numpy", "torch")
WAYS = [("process", "forkserver"), ("p2p", "forkserver")]


def check_writes(pool: Any, device: str, *, are_shared: bool) -> None:
    """Check whether caller and worker see what the other writes."""
    fill, seen = torch.Tensor.fill_, float(are_shared)
    tensor = torch.zeros(100_000, device=device)
    result = pool.apply(fill, (tensor, 5.0))
    assert float(tensor[0]) == float(tensor[-1]) == 5.0 * seen
    assert float(result[-1]) == 5.0
    assert float(result.sum()) == 500_000.0
    result[0] = 7.0
    if device == "cuda":  # it does not pass on what it was sent
        assert float(tensor[0]) == 5.0
    else:
        assert float(tensor[0]) == 7.0 * seen
    small = torch.zeros(3, device=device)
    pool.apply(fill, (small, 5.0))
    assert small.tolist() == [5.0 * seen] * 3
    # several at once, more than there are descriptors to spare
    many = [torch.zeros(10_000, device=device) for _ in range(50)]
    pool.starmap(fill, [(each, at) for at, each in enumerate(many)])
    assert [float(each[-1]) for each in many] == [at * seen for at in range(50)]


def test_tensors_are_copied() -> None:
    with pool_of("process", 1, TORCH) as pool:
        check_writes(pool, "cpu", are_shared=False)


@pytest.mark.parametrize(("backend", "method"), WAYS)
def test_tensors_of_the_cpu_are_shared(backend: str, method: str) -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    with pool_of(backend, 1, TORCH, start_method=method, share_tensors="cpu") as pool:
        check_writes(pool, "cpu", are_shared=True)
        last = pool.apply(torch.ones, (100_000,))
    assert float(last.sum()) == 100_000.0  # it outlives the worker that made it
    assert torch.multiprocessing.get_sharing_strategy() == before


@pytest.mark.gpu
@pytest.mark.parametrize(("backend", "method"), WAYS)
def test_tensors_of_a_gpu_are_shared(backend: str, method: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    with pool_of(backend, 1, TORCH, start_method=method, share_tensors="cuda") as pool:
        check_writes(pool, "cuda", are_shared=True)


def test_large_and_small_in_one_batch() -> None:
    values = [bytes(100), bytes(100_000), bytes(3_000_000), b"", bytes(70_000)] * 6
    with pool_of("process") as pool:
        assert pool.map(same, values) == values
        assert list(pool.imap(same, values)) == values
        assert [each.result(PATIENCE) for each in [pool.submit(same, v) for v in values]] == values
        assert pool.apply(len, (bytes(100_000_000),)) == 100_000_000


def test_without_room_in_shared_memory_data_goes_through_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each process says so once."""
    monkeypatch.setattr("pparallel.runtime.memory.arena.share", lambda: 1 << 20)
    with caplog.at_level(logging.WARNING), pool_of("process", 2, TORCH) as pool:
        for _ in range(2):
            check_echoes(pool)
    told = Counter(each.processName for each in caplog.records if "through files" in each.message)
    assert told == dict.fromkeys(["MainProcess", "pool-worker-0", "pool-worker-1"], 1)


def check_echoes(pool: Any) -> None:
    """Have large tensors echoed by each kind of call."""
    tensors = [torch.full((500_000,), float(each)) for each in range(10)]
    found = pool.map(same, tensors)
    found += list(pool.imap(torch.clone, tensors))
    found += [each.result(PATIENCE) for each in [pool.submit(same, t) for t in tensors]]
    found += [pool.apply(same, (each,)) for each in tensors]
    assert all(torch.equal(a, b) for a, b in zip(found, tensors * 4, strict=True))
    found[0][0] = 9.0  # it is this process's own
    assert float(tensors[0][0]) == 0.0


# -- what holds blocks ---------------------------------------------------------------------------

SUM = 1_000_000 * 999_999 // 2


def test_every_holder_of_a_block_dies_in_turn(tmp_path: Path) -> None:
    tensor = torch.arange(1_000_000)

    def ask(task: Callable[..., Any]) -> list[Any]:
        with gate_in(tmp_path / f"gate-{len(list(tmp_path.iterdir()))}") as gate:
            answers = pool.starmap_async(task, [(gate, tensor)] * 3)
            gate.arrived(3)
            gate.open()
            return list(answers.get(PATIENCE))

    with pool_of("process", 3, TORCH) as pool:
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


def test_a_stream_of_tensors_in_little_memory() -> None:
    """512 MB go through it; what the pool and its workers have at once is a fraction of that."""
    size, count, most = 4 << 20, 128, 0

    def footprint() -> int:
        pids = [os.getpid(), *pool.pids()]
        return sum(int(psutil.Process(pid).memory_full_info().pss) for pid in pids)

    with pool_of("process", preload=TORCH) as pool:
        pool.map(same, [torch.ones(10)] * 4)  # torch is there, in the workers too
        before = footprint()
        tensors = (torch.full((size // 4,), float(each)) for each in range(count))
        for at, result in enumerate(pool.imap(torch.neg, tensors)):
            assert float(result[0]) == float(result[-1]) == -at
            if at % 20 == 0:
                most = max(most, footprint())
        assert at + 1 == count
    assert most - before < 320 << 20, f"{(most - before) >> 20} MB more"
