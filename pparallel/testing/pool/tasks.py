"""What the suite's tasks do; importable in any worker."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, TypeVar

V = TypeVar("V")


class Refused(Exception):  # noqa: N818 - a user's exception, named as users do
    """What the tasks raise."""


def double(number: int) -> int:
    """Return twice the number."""
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


def note_or_refuse(path: Path, number: int) -> None:
    """Note the number, or raise on 0."""
    if number == 0:
        refuse(number)
    note(path, number)


def wait_or_refuse(wait: Any, number: int) -> None:
    """Raise on 1, and wait otherwise."""
    if number == 1:
        refuse(number)
    wait()


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
