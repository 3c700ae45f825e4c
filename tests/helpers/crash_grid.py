"""The crash grid of loky: every way to fail in every place, for any pool of processes.

Each case ends in the right error within ten seconds (the benchmark asks for one), and the pool goes
on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from pparallel.errors import RemoteError, SerializationError, WorkerLostError
from pparallel.testing.deaths import (
    DEATHS,
    FAILURES,
    ErrorWhenRebuilt,
    ErrorWhenSent,
    WhenRebuilt,
    WhenSent,
    WhenStateIsSet,
    drop,
    throw,
)

LIMIT = 10.0  #: seconds within which the caller has the error
Call = Callable[..., Any]
Args = tuple[Any, ...]
Place = Callable[[Call, Args], tuple[Call, Args]]

#: what a task is made of so that a call is made in that place
PLACES: dict[str, Place] = {
    "unpickling the argument": lambda call, args: (drop, (WhenRebuilt(call, args),)),
    "setting the state of the argument": lambda call, args: (drop, (WhenStateIsSet(call, args),)),
    "unpickling the function": lambda call, args: (partial(drop, WhenRebuilt(call, args)), ()),
    "running": lambda call, args: (call, args),
    "pickling the result": lambda call, args: (WhenSent, (call, args)),
    "pickling the exception": lambda call, args: (throw, (ErrorWhenSent, call, args)),
    "unpickling the exception": lambda call, args: (throw, (ErrorWhenRebuilt, call, args)),
}
#: the same, where it is the caller that makes the call
IN_THE_CALLER: dict[str, Place] = {
    "pickling the argument": lambda call, args: (drop, (WhenSent(call, args),)),
    "pickling the function": lambda call, args: (partial(drop, WhenSent(call, args)), ()),
    "unpickling the result": lambda call, args: (WhenRebuilt, (call, args)),
    "setting the state of the result": lambda call, args: (WhenStateIsSet, (call, args)),
}


class AnyPool(Protocol):
    """What the grid needs of a pool: ours, and what looks like that of ``multiprocessing``."""

    def apply(self, func: Call, args: Args = ...) -> Any:
        """Return what a task returns."""

    def apply_async(self, func: Call, args: Args = ...) -> Any:
        """Return an object whose ``get`` takes a time-out."""

    def map_async(self, func: Call, iterable: Iterable[Any]) -> Any:
        """Return an object whose ``get`` takes a time-out."""


def outcome(pool: AnyPool, call: Call, args: Args) -> BaseException | None:
    """Return what a task raises, None if it returns."""
    try:
        pool.apply_async(call, args).get(LIMIT)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - which it is, is what is checked
        return error
    return None


def check_use(pool: AnyPool) -> None:
    """Check that the pool works still."""
    assert pool.map_async(abs, range(-5, 5)).get(LIMIT) == [5, 4, 3, 2, 1, 0, 1, 2, 3, 4]


def check_failures(pool: AnyPool, place: str, make: Place) -> None:
    """Check each way to fail in a place, which costs no worker."""
    for failure, (call, args, raised) in FAILURES.items():
        expected: type[BaseException] = SerializationError
        if place == "running":
            expected = raised
        elif place.endswith("the exception"):
            expected = RemoteError
        pid = pool.apply(os.getpid)
        error = outcome(pool, *make(call, args))
        assert isinstance(error, expected), f"{failure}: {error!r}"
        check_use(pool)
        assert pool.apply(os.getpid) == pid, f"{failure}: the worker was lost"


def check_deaths(pool: AnyPool, make: Place, names: tuple[str, ...] = ()) -> None:
    """Check each way to die in a place, or those of *names*; each costs a worker."""
    for name in names or DEATHS:
        death = DEATHS[name]
        pid = pool.apply(os.getpid)
        error = outcome(pool, *make(death.call, death.args))
        assert isinstance(error, WorkerLostError), f"{name}: {error!r}"
        assert (error.pid, error.exitcode) == (pid, death.exitcode), name
        check_use(pool)
