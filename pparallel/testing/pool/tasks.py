"""What the suite's tasks do; importable in any worker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, TypeVar

from pparallel.testing.gate import Gate

V = TypeVar("V")


class Refused(Exception):  # noqa: N818 - a user's exception, named as users do
    """What the tasks raise."""


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def double_late(number: int) -> int:
    """Return twice the number, after a moment."""
    threading.Event().wait(0.1)
    return 2 * number


def same(value: V) -> V:
    """Return the argument."""
    return value


def power(base: int, exponent: int = 2) -> int:
    """Return base to the exponent."""
    return int(base**exponent)


def given(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return the arguments."""
    return (*args, kwargs)


def note(path: Path, value: V) -> V:
    """Add a line to a file, in one write, and return *value*."""
    with path.open("ab", buffering=0) as file:
        file.write(f"{value}\n".encode())
    return value


def noted(path: Path) -> list[str]:
    """Return the lines that were added to a file."""
    return path.read_text().split() if path.exists() else []


def refuse(value: object) -> None:
    """Raise."""
    message = f"refused {value}"
    raise Refused(message)


def refuse_odd(number: int) -> int:
    """Return an even number, and raise on an odd one."""
    if number % 2:
        refuse(number)
    return number


def note_and_refuse(path: Path) -> None:
    """Add a line to a file and raise: an initializer."""
    note(path, "started")
    refuse("to start")


def append(values: list[int]) -> None:
    """Change the argument."""
    values.append(1)


def lock() -> object:
    """Return what cannot be pickled."""
    return threading.Lock()


def die(status: int) -> None:
    """End the worker's process."""
    os._exit(status)


def own_pid(gate: Gate, _: object = None) -> int:
    """Pass through the gate, and return the process id of the worker."""
    gate.pass_through()
    return os.getpid()


def own_pid_of(_: object) -> int:
    """Return the process id of the worker."""
    return os.getpid()


def hoard(size: int) -> int:
    """Keep as many bytes of memory in use, and return the process id of the worker."""
    KEPT.append(bytearray(b"x") * size)
    return os.getpid()


def pause(seconds: float) -> None:
    """Take some time."""
    threading.Event().wait(seconds)


def note_and_wait(path: Path, gate: Gate) -> None:
    """Note the worker's process id, and pass through the gate."""
    note(path, os.getpid())
    gate.pass_through()


def note_and_call(path: Path, call: Callable[..., V], *args: Any) -> V:
    """Note the worker's process id, and make a call."""
    note(path, os.getpid())
    return call(*args)


def pass_and_call(gate: Gate, call: Callable[..., V], *args: Any) -> V:
    """Pass through the gate, and make a call."""
    gate.pass_through()
    return call(*args)


def die_on_some(path: Path, deadly: Container[int], number: int) -> int:
    """Note the number and return it, or end the worker's process if it is deadly.

    Takes longer than what a worker may run as one group, where a death is that of all.
    """
    time.sleep(1e-4)
    note(path, number)
    if number in deadly:
        os._exit(3)
    return number


def die_at_first(path: Path, deaths: int, number: int) -> int:
    """Note the number and return it; the first times, end the worker's process instead."""
    note(path, number)
    if noted(path).count(str(number)) <= deaths:
        os._exit(3)
    return number


def overwrite(values: Any) -> Any:
    """Add one to the first of the values, and return them."""
    values[0] += 1
    return values


KEPT: list[Any] = []


def keep(value: V) -> V:
    """Remember the value, in the worker, and return it."""
    KEPT.append(value)
    return value


def kept(_: object = None) -> Any:
    """Return what was remembered first."""
    return KEPT[0]


def note_or_refuse(path: Path, number: int) -> None:
    """Note the number, or raise on 0."""
    if number == 0:
        refuse(number)
    note(path, number)


def wait_refuse_or_note(wait: Any, path: Path, number: int) -> None:
    """Wait on 0, raise on 1, and note any other number."""
    if number == 1:
        refuse(number)
    wait_or_note(wait, path, number)


def wait_on_first(wait: Any, number: int) -> int:
    """Wait on 0; return the number."""
    if number == 0:
        wait()
    return number


def wait_or_note(wait: Any, path: Path, number: int) -> None:
    """Wait on 0, and note any other number."""
    if number:
        note(path, number)
    else:
        wait()
