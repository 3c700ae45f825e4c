"""The gradient server among processes: on shared memory, and where bytes are sent."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import preloads
import pytest
import torch
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import ReducerConfig
from pparallel.testing.reducer.together import TogetherTests
from pparallel_process import ProcessLauncherConfig
from pparallel_reducers import GradServerReducerConfig
from pparallel_reducers.grad_server.image import PIECE

if TYPE_CHECKING:
    from pparallel.builder import Runtime

LAUNCHER = ProcessLauncherConfig(preload=preloads.MEMBERS)


@pytest.fixture(scope="module", autouse=True)
def _imported_once() -> None:
    """Have what members import imported before any test's time runs."""
    with pparallel.build(LAUNCHER) as launcher:
        assert launcher.spawn(abs, nprocs=2) == [0, 1]


class TestGradServerAmongProcesses(TogetherTests):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return GradServerReducerConfig(
            secondaries=("member-0", "member-1", "member-2"),
            dedicated=False,
            reduce_batch_size=2,
            max_staleness=1000,
        )

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return LAUNCHER


class Large(nn.Module):
    """Its gradients travel in several pieces; a tensor lies in two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(PIECE // 4 - 100))
        self.second = nn.Parameter(torch.zeros(1000, 1500))
        self.turned = nn.Parameter(torch.zeros(300, 200).T)
        self.long = nn.Parameter(torch.zeros(PIECE // 8 + 7, dtype=torch.float64))
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(5))


def push_large(rt: Runtime, steps: int) -> tuple[list[set[float]], tuple[int, ...], int]:
    """Push gradients of many elements, each with a value of its own in all places."""
    reducer, model = rt.reducer, Large()
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    for step in range(steps if reducer.trains else 0):
        for each in model.parameters():
            each.grad = torch.full_like(each, rt.rank + step)
        model.mean.fill_(rt.rank)
        reducer.step(model)
    reducer.stop()
    values = [set((-each.detach()).unique().tolist()) for each in model.parameters()]
    return (
        [*values, set(model.mean.tolist())],
        reducer.counters()[:5],
        reducer.counters().sent_bytes,
    )


@pytest.mark.parametrize(
    ("transport", "options"),
    [
        ("ipc", {"reduce_batch_size": 2}),
        ("zmq", {"primaries": ("ps", "s"), "secondaries": ("ps", "s"), "dedicated": True}),
        ("ipc", {"secondaries": ("s",), "compression": {"kind": "topk", "ratio": 0.9}}),
    ],
)
def test_large_models(transport: str, options: dict[str, Any]) -> None:
    config = {"backend": "grad_server", "reduce_method": "sum", **options}
    job = {
        "members": ["ps", "s", "a", "b"],
        "launcher": LAUNCHER,
        "transport": {"backend": transport},
        "reducer": config,
    }
    results = pparallel.launch(job, push_large, (2,))
    training = [1, 2, 3] if "primaries" not in options else [2, 3]
    total = float(sum(rank + step for rank in training for step in range(2)))
    for values, _, _ in results:
        assert values[:4] == [{total}] * 4
        assert len(values[4]) == 1
    pushed = 2 * len(training)
    assert results[0][1] == (0, pushed, 0, 0, 0)
    nbytes = sum(each.nbytes for each in Large().state_dict().values())
    a, b = results[2][2], results[3][2]
    assert a == b
    if "compression" not in options:
        assert 2 * nbytes <= a <= 2 * (nbytes + 4 * 64), "each gradient was sent once"


def push_and_look(rt: Runtime) -> tuple[int, int]:
    """Push, and return how much shared memory is held after the first steps, and at the end."""
    reducer, model = rt.reducer, Large()
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    held = []
    for count in (3, 12):
        for _ in range(count if reducer.trains else 0):
            for each in model.parameters():
                each.grad = torch.ones_like(each)
            reducer.step(model)
        rt.group().barrier()
        gc.collect()
        arena = rt.group().arena(rt.name)
        assert arena is not None
        usage = arena.usage()
        held.append(usage.leased + usage.free)
        rt.group().barrier()
    reducer.stop()
    return held[0], held[1]


def test_shared_memory_is_used_again() -> None:
    job = {
        "members": ["ps", "a", "b"],
        "launcher": LAUNCHER,
        "reducer": {"backend": "grad_server", "reduce_batch_size": 2},
    }
    gradient = sum(each.nbytes for each in Large().parameters())
    for first, last in pparallel.launch(job, push_and_look)[1:]:
        # Of each gradient that waits to be summed it holds the memory, and of the next: four at the
        # primary, one at the secondary, one in its queue; of more while others are slow to say that
        # they are done with theirs, but not of all 15 that were pushed.
        assert first <= last <= 12 * gradient
