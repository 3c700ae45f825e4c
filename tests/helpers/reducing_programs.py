"""What members do that push gradients until some of them are killed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo  # as the first optimizer that is made would do, in each process anew
from torch import nn

from pparallel.builder import Runtime
from pparallel.errors import PeerLostError
from pparallel.interfaces.reducer import Counters
from pparallel.runtime.events import GradientsLost, Reduced

BULK = 1_500_000  #: elements that make a gradient travel in two pieces


class Ids(nn.Module):
    """Its gradients say which they are: each has a one in a place of its own."""

    def __init__(self, members: int, count: int) -> None:
        super().__init__()
        self.ids = nn.Parameter(torch.zeros(members, count, dtype=torch.float64))
        self.bulk = nn.Parameter(torch.zeros(BULK))

    def become(self, rank: int, number: int) -> None:
        """Have gradient *number* of the member *rank*."""
        self.ids.grad = torch.zeros_like(self.ids)
        self.ids.grad[rank, number] = 1.0
        self.bulk.grad = torch.ones_like(self.bulk)


class Books(NamedTuple):
    """What one member knows at the end.

    Attributes:
        ids: how often the gradient of each member and number is in the parameters.
        bulk: how often any is, by each of the elements that all gradients change alike.
        counters: the reducer's.
        lost: the sum of what events told of.
        reduced: the sum of what events told of.
        ended: what a push raised; empty if none did.
    """

    ids: list[list[float]]
    bulk: set[float]
    counters: Counters
    lost: int
    reduced: int
    ended: str


class Doubt(NamedTuple):
    """A push whose acknowledgement is lost with the secondary, which is killed.

    Attributes:
        number: which gradient.
        seconds: how long after it was accepted the secondary is killed: it may have handed it on.
    """

    number: int
    seconds: float


def push_ids(
    rt: Runtime, count: int, folder: Path, pulls: bool, slow: float, doubt: Doubt | None = None
) -> Books:
    """Push *count* gradients; write down what is sent, and what was accepted (+) or refused (-).

    Each step of the optimizer takes *slow* seconds longer than it need, which fills the queues.
    """
    (folder / f"pid {rt.name}").write_text(str(os.getpid()))
    if doubt is not None:
        _lose_an_acknowledgement(rt, folder, doubt)
    reducer, model = rt.reducer, Ids(rt.world_size, count)
    lost: list[int] = []
    reduced: list[int] = []
    rt.events.subscribe(lambda event: lost.append(event.gradients), GradientsLost)  # type: ignore[attr-defined]
    rt.events.subscribe(lambda event: reduced.append(event.gradients), Reduced)  # type: ignore[attr-defined]
    if reducer.manages:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer.register_step_pre_hook(lambda *_: time.sleep(slow))
        reducer.manage_model(model, optimizer)
    reducer.start()
    ended = ""
    with _notes(folder / f"sent {rt.name}") as sent, _notes(folder / f"acked {rt.name}") as acked:
        for number in range(count if reducer.trains else 0):
            model.become(rt.rank, number)
            sent.write(b".")
            try:
                acked.write(b"+" if reducer.push(model) else b"-")
                if pulls:
                    reducer.pull(model)
            except PeerLostError as error:
                ended = str(error)
                break
    reducer.stop()
    ids, bulk = (-each.detach() for each in model.parameters())
    return Books(
        ids.tolist(),
        set(bulk.unique().tolist()),
        reducer.counters(),
        sum(lost),
        sum(reduced),
        ended,
    )


def _lose_an_acknowledgement(rt: Runtime, folder: Path, doubt: Doubt) -> None:
    routes = rt.reducer._roles.routes  # type: ignore[attr-defined]
    push = routes.push

    def push_in_doubt(to: str, number: int, gradient: Any) -> bool:
        accepted: bool = push(to, number, gradient)
        if number != doubt.number or to in ("ps", rt.name):
            return accepted
        time.sleep(doubt.seconds)
        (folder / f"killed {to}").touch()
        with suppress(ProcessLookupError):  # another killed it first
            os.kill(int((folder / f"pid {to}").read_text()), signal.SIGKILL)
        raise PeerLostError(to, "its acknowledgement was lost with it")

    routes.push = push_in_doubt


def _notes(file: Path) -> FileIO:
    """Return a file in which is what was written to it, whatever comes after."""
    return FileIO(file, "ab")
