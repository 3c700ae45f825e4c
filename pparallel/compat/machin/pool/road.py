"""How the calls of a pool are run: by its own engine, or by a native pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pparallel.compat.machin.pool.results import AsyncResult, Callback, IMapIterator, MapResult

Func = Callable[..., Any]
Style = Literal["one", "star"]  #: ``func(item)`` or ``func(*item)``


class Road(ABC):
    """What runs the calls of one pool; open from when it is made. Any thread may use it.

    A call is refused with ``ClosedError``, which is a ``ValueError``, once the pool is closed.
    """

    @abstractmethod
    def call(
        self,
        func: Func,
        args: Sequence[Any],
        kwds: Mapping[str, Any],
        callback: Callback,
        error_callback: Callback,
    ) -> AsyncResult:
        """Have ``func(*args, **kwds)`` run."""

    @abstractmethod
    def map(
        self,
        func: Func,
        items: Sequence[Any],
        style: Style,
        chunksize: int | None,
        callback: Callback,
        error_callback: Callback,
    ) -> MapResult:
        """Have *func* run for each item."""

    @abstractmethod
    def imap(self, func: Func, items: Sequence[Any], kind: type[IMapIterator]) -> IMapIterator:
        """Have ``func(item)`` run for each item; all are handed over at once."""

    @abstractmethod
    def size(self) -> int:
        """Return the number of workers."""

    @abstractmethod
    def close(self) -> None:
        """Take no more calls, and end the workers once those taken are done."""

    @abstractmethod
    def join(self) -> None:
        """Wait until all is done and the workers have ended."""

    @abstractmethod
    def terminate(self) -> None:
        """Fail what is not done and end the workers; does not wait for their end."""

    def call_and_wait(self, func: Func, args: Sequence[Any], kwds: Mapping[str, Any]) -> Any:
        """Return ``func(*args, **kwds)``; overridden where that is quicker than a call."""
        return self.call(func, args, kwds, None, None).get()

    def map_and_wait(
        self, func: Func, items: Sequence[Any], style: Style, chunksize: int | None
    ) -> list[Any]:
        """Return the results of *func* for the items; overridden as :meth:`call_and_wait`."""
        values: list[Any] = self.map(func, items, style, chunksize, None, None).get()
        return values
