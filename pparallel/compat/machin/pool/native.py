"""Pools on native ones; this only translates."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from pparallel.builder import build, load
from pparallel.compat.machin.pool.results import AsyncResult, Callback, IMapIterator, MapResult
from pparallel.compat.machin.pool.road import Func, Road, Style
from pparallel.interfaces.pool import NO_SINK, Batch, Pool, PoolConfig, ResultStream
from pparallel.interfaces.pool.stream import Work
from pparallel.runtime.collected import when_collected
from pparallel.runtime.program_end import end_with_program


class NativeRoad(Road):
    """Runs the calls of one pool on a native pool, which ends when *owner* is collected.

    Args:
        owner: the pool; not kept alive.
        config: of the native pool.
    """

    def __init__(self, owner: object, config: Mapping[str, Any]) -> None:
        self._native: Pool = build(load(PoolConfig, config))
        self._native.open()  # whoever ends it may be another thread than this one
        self._ending = _Ending(self._native)
        self._end_in_the_background = when_collected(owner, self._ending.end)

    @override
    def call(
        self,
        func: Func,
        args: Sequence[Any],
        kwds: Mapping[str, Any],
        callback: Callback,
        error_callback: Callback,
    ) -> AsyncResult:
        handle = self._native.apply_async(func, args, kwds, callback, error_callback)
        return AsyncResult.of(handle)

    @override
    def map(
        self,
        func: Func,
        items: Sequence[Any],
        style: Style,
        chunksize: int | None,
        callback: Callback,
        error_callback: Callback,
    ) -> MapResult:
        native = self._native
        start = native.map_async if style == "one" else native.starmap_async
        return MapResult.of(start(func, items, chunksize, callback, error_callback))

    @override
    def imap(self, func: Func, items: Sequence[Any], kind: type[IMapIterator]) -> IMapIterator:
        native = self._native
        native.carry(Batch(func, ()), NO_SINK)  # refuses what is closed
        # All at once: a program may close and join the pool before it asks for the results.
        work = Work(native.hand_over, native.attend, func, len(items), 1)
        return kind.of(ResultStream(work, items, ordered=kind.ordered))

    @override
    def call_and_wait(self, func: Func, args: Sequence[Any], kwds: Mapping[str, Any]) -> Any:
        return self._native.apply(func, args, kwds)

    @override
    def map_and_wait(
        self, func: Func, items: Sequence[Any], style: Style, chunksize: int | None
    ) -> list[Any]:
        run = self._native.map if style == "one" else self._native.starmap
        return run(func, items, chunksize)

    @override
    def size(self) -> int:
        return self._native.size()

    @override
    def close(self) -> None:
        self._native.close()

    @override
    def join(self) -> None:
        self._ending.join()
        self._end_in_the_background()

    @override
    def terminate(self) -> None:
        self._native.terminate()
        # Not here: this may be a thread of the pool's, which calls back.
        self._end_in_the_background()


class _Ending:
    """Ends a native pool, which may be open still when its owner, or the program, is gone."""

    def __init__(self, native: Pool) -> None:
        self._native = native
        self._lock = threading.Lock()
        end_with_program(native)

    def join(self) -> None:
        with self._lock:  # the second to come waits until all is released
            self._native.join()

    def end(self) -> None:
        self._native.terminate()
        self.join()
