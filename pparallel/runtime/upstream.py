"""How a rank tells the process that launched it something while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Tell = Callable[[object], object]

_current: ContextVar[Tell | None] = ContextVar("pparallel_upstream", default=None)


def current() -> Tell | None:
    """Return what hands an object on to where this rank was launched, None if nobody hears it."""
    return _current.get()


@contextmanager
def heard_by(tell: Tell | None) -> Iterator[None]:
    """Have *tell* be what hands on inside."""
    token = _current.set(tell)
    try:
        yield
    finally:
        _current.reset(token)
