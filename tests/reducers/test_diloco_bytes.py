"""The reducer ``diloco``: pieces of large models, and compression."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import preloads
import pytest
import torch
from reducer_models import begun
from torch import nn

import pparallel
from pparallel.interfaces.reducer import Counters
from pparallel.runtime.events import Events
from pparallel.runtime.rpc import Reply
from pparallel_reducers import DilocoReducerConfig
from pparallel_reducers.diloco.desks import RemoteDesk
from pparallel_reducers.diloco.pieces import Draft, cut
from pparallel_reducers.layout import Layout
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from pparallel.builder import Runtime


# -- bytes ----------------------------------------------------------------------------------------


def step_large(rt: Runtime, steps: int, rows: int) -> Any:
    model = nn.Linear(1024, rows, bias=False)
    nn.init.constant_(model.weight, 1.0)
    begun(rt, model)
    ramp = torch.arange(rows * 1024.0).view(rows, 1024) / 1024
    for _ in range(steps):
        model.weight.grad = ramp * (rt.rank + 1)
        rt.reducer.step(model)
    rt.reducer.stop()
    assert torch.allclose(model.weight, 1 - steps * 1.5 * ramp, rtol=1e-4)
    return rt.reducer.counters().sent_bytes


@pytest.mark.parametrize(
    "launcher",
    [{"backend": "thread"}, {"backend": "process", "preload": preloads.MEMBERS}],
    ids=["threads", "processes"],
)
def test_large_models_go_in_pieces_and_are_counted(launcher: dict[str, Any]) -> None:
    """One of 10.5 MB: the last piece is a part of one, as are rounds and what stop() adds."""
    rows, rounds = 2561, 2
    config = DilocoReducerConfig(inner_steps=2, outer_lr=1, outer_momentum=0)
    job = {"members": 2, "launcher": launcher, "reducer": config}
    sent = pparallel.launch(job, step_large, (2 * rounds - 1, rows))
    size = rows * 1024 * 4
    # Each hands in, or sends, one for each round, and the coordinator what training begins with.
    assert sent == [size * (1 + rounds), size * rounds]


def test_memory_is_cut_and_joined() -> None:
    sizes = [5, 0, 12, 1]
    memory = [
        bytes(range(first, first + size)) for first, size in zip((0, 0, 50, 90), sizes, strict=True)
    ]
    pieces = cut(memory, 4)
    assert [sum(each.nbytes for each in piece) for piece in pieces] == [4, 4, 4, 4, 2]
    assert b"".join(b"".join(piece) for piece in pieces) == b"".join(memory)


def test_pieces_come_in_any_order_and_fit() -> None:
    memory = [bytes(3 * 2**20), b"\1" * 2**22, b"\2" * 7]
    pieces = cut(memory)
    draft = Draft(0, [len(each) for each in memory])
    draft.take(1, pieces[1])
    with pytest.raises(ValueError, match="1 of 2 pieces have not come"):
        draft.whole()
    with pytest.raises(ValueError, match=r"a piece of \[3145735\] bytes arrived, not of"):
        draft.take(0, [bytes(3145735)])
    draft.take(0, pieces[0])
    draft.take(0, pieces[0])
    assert draft.whole() == memory


class Moving:
    """A group whose outer parameters become others while the first pieces are fetched."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask_async(self, to: str, key: str, body: tuple[str, int], buffers: object) -> Future[Reply]:
        _, index = body
        version = 4 if len(self.asked) < 2 else 5
        self.asked.append(index)
        reply = Future[Reply]()
        reply.set_result(Reply(version, [bytes([version]) * (2**22 if index < 2 else 4)]))
        return reply


def test_what_is_fetched_is_of_one_version() -> None:
    layout = Layout([("weight", (2**21 + 1,), "float32", "trainable")])
    group: Any = Moving()
    desk = RemoteDesk(group, "a", Tally(Events("me"), "reducer"), None)
    weights, version = desk.weights(layout)
    assert version == 5
    assert group.asked == [0, 1, 2] * 2
    assert set(weights.trainable[torch.float32].view(torch.uint8).tolist()) == {5}


# -- compression ----------------------------------------------------------------------------------


def descend(rt: Runtime, rows: int) -> tuple[float, int, Counters]:
    """Fit a plane to points of it; return the largest error, and the bytes sent for training."""
    plane, norm = nn.Linear(64, rows, bias=False), nn.BatchNorm1d(rows, affine=False)
    nn.init.zeros_(plane.weight)
    model = begun(rt, nn.Sequential(plane, norm), lr=0.5)
    started = rt.reducer.counters().sent_bytes
    goal = torch.linspace(-1, 1, rows * 64).view(rows, 64)
    for _ in range(120):
        points = torch.randn(32, 64, generator=rt.streams.torch)
        made = plane(points)
        norm(made.detach())
        (made - points @ goal.T).square().mean(0).sum().div(8).backward()
        rt.reducer.step(model)
    rt.reducer.stop()
    counters = rt.reducer.counters()
    error = float((plane.weight.detach() - goal).abs().max())
    assert norm.running_var is not None
    assert abs(float(norm.running_var.mean()) - 21) < 10, "running means are not compressed"
    return error, counters.sent_bytes - started, counters


@pytest.mark.parametrize(
    ("compression", "times"),
    [
        ({"kind": "bf16"}, 1.9),
        ({"kind": "topk", "ratio": 0.1}, 4),
        ({"kind": "powersgd", "rank": 2}, 4),
    ],
    ids=lambda each: each["kind"] if isinstance(each, dict) else "",
)
def test_differences_may_be_compressed(compression: dict[str, Any], times: float) -> None:
    """What is left out is handed in later: the goal is reached all the same, in fewer bytes."""
    raw: dict[str, Any] = {"backend": "diloco", "inner_steps": 2, "outer_momentum": 0}
    job = {"members": 2, "seed": 3, "reducer": {**raw, "compression": compression}}
    results = pparallel.launch(job, descend, (32,))
    _, whole, _ = pparallel.launch({**job, "reducer": raw}, descend, (32,))[1]
    for error, _, counters in results:
        assert error < 0.02
        assert counters[:5] == (120, 120, 0, 0, 0)
    assert whole / results[1][1] > times
    assert whole == 60 * 4 * (32 * 64 + 32 * 2) + 60 * 8
