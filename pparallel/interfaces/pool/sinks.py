"""What settles a handle with the outcome of its batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from typing_extensions import override

from pparallel.interfaces.pool.batch import Sink
from pparallel.interfaces.pool.results import PoolResult

R = TypeVar("R")


class CallSink(Sink, Generic[R]):
    """Settles a handle with the value of the one task of its batch."""

    __slots__ = ("_callback", "_error_callback", "_handle")

    def __init__(
        self,
        handle: PoolResult[R],
        callback: Callable[[R], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._handle = handle
        self._callback = callback
        self._error_callback = error_callback
        if callback is not None or error_callback is not None:
            handle.listen()

    @property
    @override
    def cancelled(self) -> bool:
        return self._handle.settled()

    @override
    def begin(self) -> bool:
        return self._handle.begin()

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        self._handle.settle(values[0], self._callback)

    @override
    def failed(self, index: int, error: BaseException) -> None:
        self._handle.settle_with_error(error, self._error_callback)

    @override
    def abort(self, error: BaseException) -> None:
        self._handle.settle_with_error(error, self._error_callback)

    def finish(self, value: R) -> None:
        """Settle the handle with *value*, unless it is settled."""
        self._handle.settle(value, self._callback)


class MapSink(CallSink[list[R]], Generic[R]):
    """Settles a handle with the list of a batch's values, or with its first failure."""

    __slots__ = ("_left", "_lock", "_size", "_values")

    def __init__(
        self,
        handle: PoolResult[list[R]],
        size: int,
        callback: Callable[[list[R]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        super().__init__(handle, callback, error_callback)
        self._lock = threading.Lock()
        self._size = self._left = size
        self._values: list[R | None] = []

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        if len(values) == self._size:
            self.finish(list(values))
            return
        with self._lock:
            if not self._values:
                self._values = [None] * self._size
            self._values[first : first + len(values)] = values
            self._left -= len(values)
            complete = self._left == 0
        if complete:
            self.finish(cast("list[R]", self._values))
