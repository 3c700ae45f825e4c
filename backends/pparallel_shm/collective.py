"""The collective ``shm``."""

from __future__ import annotations

from typing_extensions import override

from pparallel.runtime.collectives import ConnectedCollective


class ShmCollective(ConnectedCollective):
    """Members are processes of one machine."""

    @override
    def join(self) -> None:
        """Set up the shared memory."""

    @override
    def leave(self) -> None:
        """Give it back."""

    @override
    def member_left(self, rank: int, error: BaseException) -> None:
        """Wake who waits."""
