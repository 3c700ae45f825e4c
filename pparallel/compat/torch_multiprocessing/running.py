"""What runs in a process; quickly imported by each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def run(index: int, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Call ``fn(index, *args)``; to exit with code 0 is not to fail."""
    try:
        fn(index, *args)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
