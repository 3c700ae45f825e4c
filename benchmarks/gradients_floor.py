"""What a gradient server's round takes by bare copies, of which nothing is checked or counted.

Each member copies its gradients into shared memory and the parameters out of it; a server adds the
gradients up, steps and publishes, a piece at a time on two threads. Whoever copies in full does at
least that.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.away import started
from benchmarks.crews import Crew, crew
from benchmarks.gradients_parts import MEMBERS, PRELOAD, Trainer, model

_PIECE = 2**20  #: floats that a thread adds up at a time
_READY = b"x"


@contextmanager
def bare_copies(megabytes: int) -> Iterator[Crew]:
    """Give four members that train."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(dir="/dev/shm"))
        os.mkfifo(f"{folder}/up")
        for rank in range(MEMBERS):
            os.mkfifo(f"{folder}/down-{rank}")
        size = sum(each.numel() for each in model(megabytes, gradients=False).parameters())
        with Path(folder, "memory").open("wb") as memory:
            memory.truncate(4 * size * (MEMBERS + 1))
        payload = pickle.dumps((folder, size))
        stack.enter_context(started("benchmarks.gradients_floor:_serve", payload, preload=PRELOAD))
        opened = [partial(_trainer, folder, size, rank, megabytes) for rank in range(MEMBERS)]
        yield stack.enter_context(crew(opened, preload=PRELOAD))


def _memory(folder: str, size: int) -> list[Tensor]:
    """Return the gradients of each member, and at the end the parameters."""
    whole = torch.from_file(
        f"{folder}/memory", shared=True, size=size * (MEMBERS + 1), dtype=torch.float32
    )
    return list(whole.split(size))


def _serve(payload: bytes, _: Sequence[int]) -> None:
    """Be the server, until the members have gone."""
    folder, size = pickle.loads(payload)
    torch.set_num_threads(1)
    *gradients, published = _memory(folder, size)
    parameters, mean = torch.zeros(size), torch.empty(size)
    starts = range(0, size, _PIECE)

    def add_up(pieces: Sequence[int]) -> None:
        for start in pieces:
            first, second, *rest = (each[start : start + _PIECE] for each in gradients)
            total, piece = mean[start : start + _PIECE], parameters[start : start + _PIECE]
            torch.add(first, second, out=total)
            for each in rest:
                total.add_(each)
            piece.add_(total, alpha=-1 / MEMBERS)
            _copy(published[start : start + _PIECE], piece)

    with ExitStack() as stack:
        up = stack.enter_context(open(f"{folder}/up", "rb", buffering=0))
        downs = [
            stack.enter_context(open(f"{folder}/down-{rank}", "wb", buffering=0))
            for rank in range(MEMBERS)
        ]
        there = 0
        while told := up.read(MEMBERS - there):
            there += len(told)
            if there == MEMBERS:
                there = 0
                helper = threading.Thread(target=add_up, args=(starts[1::2],))
                helper.start()
                add_up(starts[::2])
                helper.join()
                for each in downs:
                    each.write(_READY)


@contextmanager
def _trainer(folder: str, size: int, rank: int, megabytes: int) -> Iterator[Trainer]:
    trained = model(megabytes)
    parameters = list(trained.parameters())
    memory = _memory(folder, size)
    sizes = [each.numel() for each in parameters]
    there, published = memory[rank].split(sizes), memory[-1].split(sizes)
    with (
        open(f"{folder}/up", "wb", buffering=0) as up,
        open(f"{folder}/down-{rank}", "rb", buffering=0) as down,
    ):

        def train() -> None:
            for target, parameter in zip(there, parameters, strict=True):
                assert parameter.grad is not None
                _copy(target, parameter.grad)
            up.write(_READY)
            if down.read(1) != _READY:
                raise EOFError("the server has gone")
            for parameter, source in zip(parameters, published, strict=True):
                _copy(parameter, source)

        yield Trainer(rank, trained, train)


def _copy(target: Tensor, source: Tensor) -> None:
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
