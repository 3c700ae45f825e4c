"""What a transport can do whose members share memory."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pparallel.runtime.memory.arena import Arena


@runtime_checkable
class SharesMemory(Protocol):
    """A transport between members of one machine that see one another's memory.

    It sends what lies in a published block of its own arena without a copy.
    """

    def arena(self, of: str) -> Arena | None:
        """Return the arena of member *of*, as this one has it; ``None``: it has none, or not yet.

        Only its own may be allocated from.
        """
