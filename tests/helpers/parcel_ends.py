"""Both ends of what parcels go through."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from typing_extensions import Buffer

from pparallel.runtime.shm import Arena, Parcel, Parcels

KB, MB = 1 << 10, 1 << 20


def array(content: Any) -> Any:
    """Return a read-only array of bytes; mypy does not know that arrays are buffers."""
    return np.array(np.frombuffer(content, np.uint8)) if len(content) else np.empty(0, np.uint8)


class Ends:
    """Two ends with an arena each, as a pool and its worker have; here in one process."""

    def __init__(self, budget: int = 256 * MB) -> None:
        self.arenas = [Arena.create(budget=budget), Arena.create(budget=budget)]
        self.attached = [Arena.attach(each.fd) for each in self.arenas]
        self.here = Parcels(self.arenas[0], {1: self.attached[1]})
        self.there = Parcels(self.arenas[1], {0: self.attached[0]})

    def blocks(self) -> list[int]:
        return [each.usage().blocks for each in self.arenas]

    def close(self) -> None:
        for each in (*self.arenas, *self.attached):
            each.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def sent(parcel: Parcel) -> tuple[bytes, list[int]]:
    """Return what the receiver gets: the descriptors are copies, as after SCM_RIGHTS."""
    head = parcel.head()
    arrived = [os.dup(each) for each in parcel.fds]
    for each in parcel.fds:
        os.close(each)
    return head, arrived


def ramp(nbytes: int, start: int = 0) -> bytes:
    return (np.arange(start, start + nbytes) % 251).astype(np.uint8).tobytes()


# -- moving ---------------------------------------------------------------------------------------


def echo(ends: Ends, buffers: list[Buffer]) -> list[bytes]:
    parcel = ends.there.pack(buffers, move=True)
    buffers.clear()
    return [bytes(each) for each in ends.here.unpack(*sent(parcel))]
