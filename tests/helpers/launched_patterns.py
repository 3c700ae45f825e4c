"""What ranks run in the tests of what goes with launchers; quickly imported by each process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from pparallel import MpModelWrapper, MpSerialExecutor

RUNS = 3


def note(folder: Path) -> int:
    """Fail if another one is at it."""
    mark = folder / "here"
    mark.touch(exist_ok=False)
    time.sleep(0.003)
    mark.unlink()
    with (folder / "done").open("ab", buffering=0) as done:
        done.write(b".")
    return os.getpid()


def take_turns(rank: int, executor: MpSerialExecutor, folder: Path) -> list[int]:
    return [executor.run(lambda: note(folder)) for _ in range(RUNS)]


def die_inside(rank: int, executor: MpSerialExecutor) -> None:
    executor.run(lambda: os._exit(3))


def run_inside(rank: int, executor: MpSerialExecutor) -> None:
    executor.run(lambda: executor.run(lambda: None))


class Slow:
    """Stands for a model; fails if two are moved at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def to(self, device: str) -> Slow:
        note(self.folder)
        return self


def move(rank: int, wrapper: MpModelWrapper[Any]) -> bool:
    return wrapper.to("cpu") is wrapper.to("cpu")


def train(rank: int, wrapper: MpModelWrapper[Any]) -> tuple[float, float]:
    """Change the weights; return their sums before and after."""
    model = wrapper.to("cpu")
    torch = sys.modules["torch"]
    with torch.no_grad():
        before = float(model.weight.sum())
        model.weight += rank + 1
        return before, float(model.weight.sum())


def where_the_weights_are(rank: int, wrapper: MpModelWrapper[Any]) -> str:
    """Return the line of the memory map that holds the weights."""
    address = wrapper.to("cpu").weight.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if start <= address < end:
            return line
    raise AssertionError
