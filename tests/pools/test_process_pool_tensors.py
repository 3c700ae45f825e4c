"""Large data: shared with the workers or copied, and what happens where there is no room for it."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from process_backends import each_backend, pool_of

from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.tasks import same

torch = pytest.importorskip("torch")

TORCH = ("numpy", "torch")
WAYS = [("process", "forkserver"), ("p2p", "forkserver"), ("p2p", "spawn")]


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


@each_backend
def test_tensors_are_copied(backend: str) -> None:
    with pool_of(backend, 1, TORCH) as pool:
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


@each_backend
def test_large_and_small_in_one_batch(backend: str) -> None:
    values = [bytes(100), bytes(100_000), bytes(3_000_000), b"", bytes(70_000)] * 6
    with pool_of(backend) as pool:
        assert pool.map(same, values) == values
        assert list(pool.imap(same, values)) == values
        assert [each.result(PATIENCE) for each in [pool.submit(same, v) for v in values]] == values
        assert pool.apply(len, (bytes(100_000_000),)) == 100_000_000


@each_backend
def test_without_room_in_shared_memory_data_goes_through_files(
    backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each process says so once."""
    monkeypatch.setattr("pparallel.runtime.shm.limits.budget", lambda: 1 << 20)
    with caplog.at_level(logging.WARNING), pool_of(backend, 2, TORCH) as pool:
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
