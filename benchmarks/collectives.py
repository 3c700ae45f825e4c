"""The local collective's own operations beside the default algorithms over its messages.

The figures are of the time until all four members have done an operation. A barrier of its own
kind ends each, and is in the time.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from threading import Thread
from time import perf_counter
from types import MethodType
from typing import Any, NamedTuple

import torch

import pparallel
from benchmarks.harness import Contest, Making, Samples, Setting, Turn
from pparallel.interfaces.collective import Collective

MEMBERS = 4
SIZES = (10, 10_000, 1_000_000, 10_000_000)


class Order(NamedTuple):
    """What all members have to do at once; the first of them answers with the seconds."""

    kind: str
    operation: str
    size: int
    value: int
    took: Future[float]


class Crew:
    """Members in threads that do what they are told, all the same."""

    def __init__(self) -> None:
        self._orders: list[queue.SimpleQueue[Order | None]] = [
            queue.SimpleQueue() for _ in range(MEMBERS)
        ]
        defaults = {"interface": "collective", "backend": "local"}
        config = {"members": MEMBERS, "extra": {"defaults": defaults}}
        self._pending: Future[float] = Future()
        self._thread = Thread(target=self._launch, args=[config])

    def __enter__(self) -> Crew:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tell(None)
        self._thread.join()

    def turn(self, kind: str, operation: str, size: int) -> Turn:
        """Return a turn that has all members do one operation."""

        def turn(number: int) -> Samples:
            if not self._thread.is_alive():
                raise RuntimeError("the members have ended")
            self._pending = Future()
            self._tell(Order(kind, operation, size, number, self._pending))
            return {"wall": self._pending.result()}

        return turn

    def _tell(self, order: Order | None) -> None:
        for each in self._orders:
            each.put(order)

    def _launch(self, config: Mapping[str, object]) -> None:
        try:
            pparallel.launch(config, self._serve)
        except Exception as error:  # noqa: BLE001 - whoever waits for the members has to hear of it
            self._pending.set_exception(error)

    def _serve(self, rt: pparallel.Runtime) -> None:
        defaults: Collective = rt["defaults"]
        defaults.operation = MethodType(Collective.operation, defaults)  # type: ignore[method-assign]
        kinds: dict[str, Collective] = {"ours": rt.collective, "defaults": defaults}
        rank = rt.collective.rank
        while order := self._orders[rank].get():
            took = _do(kinds[order.kind], order)
            if rank == 0:
                order.took.set_result(took)


def _do(group: Collective, order: Order) -> float:
    """Do one operation, and check what came of it."""
    tensor = torch.full((order.size,), float(order.value))
    everyone = [torch.zeros(order.size) for _ in range(MEMBERS)]
    operations: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: group.all_reduce(tensor),
        "broadcast": lambda: group.broadcast(tensor, 0),
        "all_gather": lambda: group.all_gather(everyone, tensor),
        "barrier": group.barrier,
    }
    group.barrier()
    began = perf_counter()
    operations[order.operation]()
    group.barrier()
    took = perf_counter() - began
    reduced = order.value * (MEMBERS if order.operation == "all_reduce" else 1)
    gathered = order.value if order.operation == "all_gather" else 0
    if not (bool((tensor == reduced).all()) and all(bool((x == gathered).all()) for x in everyone)):
        raise ValueError(f"{order.operation} of {order.size} floats has a wrong result")
    return took


@contextmanager
def contest(operation: str, size: int, setting: Setting) -> Iterator[Contest]:
    """One operation on tensors of one size."""
    size = min(size, setting.count(size, 1000))
    with Crew() as crew:
        kinds = ("ours", "defaults")
        turns = {kind: crew.turn(kind, operation, size) for kind in kinds}
        yield Contest(contenders=turns, rounds=11)


CONTESTS: dict[str, Making] = {
    **{
        f"{operation}, {size:,} floats": partial(contest, operation, size)
        for operation in ("all_reduce", "broadcast", "all_gather")
        for size in SIZES
    },
    "barrier": partial(contest, "barrier", 1),
}
