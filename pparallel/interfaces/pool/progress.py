"""How far a call of many tasks is: what a pool tells, and to whom."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from typing_extensions import override

from pparallel.interfaces.pool.batch import Sink


class Bar(Protocol):
    """A progress bar, as users may make their own: what tqdm's bars have of it is enough.

    Its methods are called one at a time, though from several threads.
    """

    def update(self, n: int, /) -> object:
        """Show that *n* more tasks have ended."""

    def close(self) -> object:
        """Show no more: the call has ended, in whatever way."""


#: makes a bar, given the name of the call's function and how many tasks there are, if it is known
MakeBar = Callable[[str, int | None], Bar]

#: what ``PoolConfig.progress`` may be
Progress = bool | Literal["tqdm", "notebook", "rich"] | MakeBar


class Meter(ABC):
    """Is told how far one call is, from any thread; no method raises an ``Exception``."""

    @abstractmethod
    def start(self) -> None:
        """The first task starts."""

    @abstractmethod
    def advance(self, count: int) -> None:
        """So many more tasks have ended; returns at once."""

    @abstractmethod
    def close(self) -> None:
        """The call has ended: returns when that is shown; safe to call again."""


#: makes a meter for a call of the function of that name, and of so many tasks if it is known
Metering = Callable[[str, int | None], Meter]


class MeteredSink(Sink):
    """Tells a meter of what it passes on to another sink."""

    prompt = True  # a bar that stands still until all is done is none

    def __init__(self, sink: Sink, meter: Meter, size: int) -> None:
        self._sink = sink
        self._meter = meter
        self._left = size
        self._lock = threading.Lock()
        self.piecewise = sink.piecewise
        self.observed = sink.observed

    @property
    @override
    def cancelled(self) -> bool:
        return self._sink.cancelled

    @override
    def begin(self) -> bool:
        begun = self._sink.begin()
        if begun:
            self._meter.start()
        return begun

    @override
    def started(self, index: int, worker: str) -> None:
        self._sink.started(index, worker)

    @override
    def retried(self, index: int, error: BaseException) -> None:
        self._sink.retried(index, error)

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        self._meter.advance(len(values))
        with self._lock:
            self._left -= len(values)
        if not self._left:
            self._meter.close()
        self._sink.done(first, values)

    @override
    def failed(self, index: int, error: BaseException) -> None:
        self._meter.advance(1)
        self._meter.close()
        self._sink.failed(index, error)

    @override
    def abort(self, error: BaseException) -> None:
        self._meter.close()
        self._sink.abort(error)


def count_of(items: Iterable[object]) -> int | None:
    """Return how many *items* there are, None: they do not say."""
    with contextlib.suppress(Exception):  # a length may well refuse to be asked
        return len(items)  # type: ignore[arg-type]
    return None
