"""A pool that has no life of its own, for tests of what all pools inherit."""

from __future__ import annotations

from typing_extensions import override

from pparallel.interfaces.pool import Pool


class StillPool(Pool):
    """What derives from it says what becomes of a batch."""

    @override
    def size(self) -> int:
        return 1

    @override
    def lookahead(self) -> int:
        return 0

    @override
    def open(self) -> None: ...

    @override
    def close(self) -> None: ...

    @override
    def join(self) -> None: ...

    @override
    def terminate(self) -> None: ...
