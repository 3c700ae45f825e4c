"""What goes with a lot to its worker: functions that it does not know, and how to run it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from pparallel.runtime.pools.lots import Lot
from pparallel.runtime.pools.messages import LOT, Message
from pparallel.runtime.pools.writing import Written

Functions = dict[int, list[bytes]]  #: as bytes, by number


class Knowing(Protocol):
    """A worker, as far as functions go.

    Attributes:
        known: the numbers of those that it was sent and has not been told to forget.
        forgotten: the numbers of those that it is to be told to.
    """

    known: set[int]
    forgotten: list[int]


def fresh_functions(lot: Lot, known: set[int]) -> Functions:
    """Return the functions of *lot* that are not known."""
    fresh = {}
    for job in lot.jobs():
        function = job.function
        if function.number not in known:
            fresh[function.number] = function.data
    return fresh


def forget(gone: deque[int], workers: Iterable[Knowing]) -> None:
    """Have *workers* told of the functions that nobody needs any longer, and empty *gone*."""
    if not gone:
        return
    everybody = list(workers)
    while gone:
        number = gone.popleft()
        for worker in everybody:
            if number in worker.known:
                worker.known.discard(number)
                worker.forgotten.append(number)


def lot_message(
    lot: Lot, written: Written, fresh: Functions, forgotten: list[int], *, is_timed: bool
) -> Message:
    """Return what a worker's loop takes as a lot.

    Args:
        lot: which.
        written: its items.
        fresh: the functions that the worker does not know yet.
        forgotten: the numbers of those that it may forget.
        is_timed: each task has a time limit, so that each is told of by itself.
    """
    return (
        LOT,
        lot.number,
        lot.function.number,
        lot.style,
        written.kind,
        written.content,
        fresh,
        forgotten,
        1 if is_timed else lot.function.pace.together(lot.size),
        is_timed,
        lot.style == "call" or lot.task(0)[0].is_prompt,
    )
