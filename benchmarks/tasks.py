"""What the workers run: plain functions, found by name in every process, that import little."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pparallel.builder import Runtime

Anything = TypeVar("Anything")


def no_op(number: int) -> int:
    """Do nothing."""
    return number


class Station:
    """An object that another process has."""

    def no_op(self, number: int) -> int:
        """Do nothing."""
        return number


def add_seven(number: int) -> int:
    """Do what a closure made by `adder` does."""
    return number + 7


def adder(amount: int) -> Callable[[int], int]:
    """Return a closure, which no stock pickle takes."""
    return lambda number: number + amount


def work(item: tuple[int, float]) -> int:
    """Use the processor for as many seconds as the item says; return the item's number."""
    number, seconds = item
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return number


def echo(value: Anything) -> Anything:
    """Return the value as it is."""
    return value


def add_one(value: Any) -> Any:
    """Return a new tensor or array."""
    return value + 1


def meet(rt: Runtime) -> None:
    """Wait for the other members of a job."""
    rt.group().barrier()


def share_by(strategy: str) -> None:
    """Set torch's way of sharing memory, in a worker of torch's own pool."""
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy(strategy)


def wait_to_be_killed(path: str) -> None:
    """Tell in a file who runs this, and wait for a signal."""
    unfinished = Path(f"{path}.part")
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(path)
    signal.pause()
