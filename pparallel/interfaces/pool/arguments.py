"""What the calls of a pool are given: items made ready, and the rest checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def listed(iterable: Iterable[Any]) -> Sequence[Any]:
    """Return the items as what has a length, which the caller cannot change."""
    return iterable if isinstance(iterable, tuple | range) else list(iterable)


def unpackable(iterable: Iterable[Any]) -> Sequence[Any]:
    """Return the items; those that can be read only once are, for they may be sent twice."""
    items = listed(iterable)
    if any(hasattr(each, "__next__") for each in items):
        return [tuple(each) if hasattr(each, "__next__") else each for each in items]
    return items


def check_callable(func: object) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: *func* is not callable.
    """
    if not callable(func):
        message = f"a pool runs functions: {func!r} is not callable"
        raise TypeError(message)


def arguments(args: Iterable[Any]) -> tuple[Any, ...]:
    """Return the arguments of one call.

    Raises:
        TypeError: *args* is one argument, not a tuple of them.
    """
    try:
        return tuple(args)
    except TypeError:
        if hasattr(type(args), "__iter__"):
            raise  # what goes wrong in it is its own
        message = f"args is a tuple: ({args!r},)"
        raise TypeError(message) from None


def check_chunksize(chunksize: int | None) -> None:
    """Refuse a chunk of nothing.

    Raises:
        TypeError: *chunksize* is no number.
        ValueError: *chunksize* is less than 1.
    """
    if chunksize is not None and not hasattr(chunksize, "__index__"):
        message = (
            f"chunksize is a number, not a {type(chunksize).__name__};"
            " for several iterables: starmap(f, zip(...))"
        )
        raise TypeError(message)
    if chunksize is not None and chunksize < 1:
        message = f"chunksize must be at least 1, not {chunksize}"
        raise ValueError(message)
