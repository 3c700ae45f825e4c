"""What the workers of the pool's machine do; importable in any of them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, Literal

from pparallel.testing.gate import Gate

Deed = Literal["return", "refuse", "exit", "unsendable", "die", "hold"]

EXITCODE = 3  #: of a worker that a task ends


class Refused(Exception):  # noqa: N818 - a user's exception, named as users do
    """What tasks raise."""


def perform(notes: Path, deed: Deed, number: int) -> Any:
    """Note in a file that task *number* was started, and end as it is told to."""
    _note(notes, number)
    if deed == "refuse":
        raise Refused(number)
    if deed == "exit":
        sys.exit(number)
    if deed == "die":
        os._exit(EXITCODE)
    return threading.Lock() if deed == "unsendable" else 2 * number


def perform_item(item: tuple[Path, Deed, int]) -> Any:
    """As :func:`perform`, of one argument."""
    return perform(*item)


def hold(notes: Path, gate: Gate, number: int) -> None:
    """Note that task *number* was started, and wait at the gate."""
    _note(notes, number)
    gate.pass_through()


def started(notes: Path) -> list[int]:
    """Return the numbers of the tasks that were started, in the order of their notes."""
    return [int(each) for each in notes.read_bytes().split()] if notes.exists() else []


def own_pid() -> int:
    """Return the process id of the worker."""
    return os.getpid()


def _note(notes: Path, number: int) -> None:
    with notes.open("ab", buffering=0) as file:
        file.write(b"%d\n" % number)
