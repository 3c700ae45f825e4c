"""What functions are called in front of users."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


def name_of(func: Callable[..., object]) -> str:
    """Return what *func* is called, or the function in it if it is a ``partial``."""
    while isinstance(func, partial):
        func = func.func
    try:
        name = func.__qualname__
    except Exception:  # noqa: BLE001 - an object that is called may answer in any way
        name = None
    return name if name and isinstance(name, str) else type(func).__qualname__
