"""What the members of a gradient server agree on from start to stop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from pparallel_reducers.grad_server.shares import Share, shares
from pparallel_reducers.layout import Layout


class Run:
    """What all members know from start to stop.

    Attributes:
        layout: of the managed model.
        versions: the first of each share.
    """

    def __init__(self, layout: Layout, versions: Sequence[int]) -> None:
        self.layout = layout
        self.versions = list(versions)

    @cached_property
    def shares(self) -> list[Share]:
        """What each primary steps. To know it takes torch, which some members need not import."""
        return shares(self.layout, len(self.versions))
