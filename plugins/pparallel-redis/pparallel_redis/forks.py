"""What becomes of connections when the process forks: the child makes its own.

A connection that two processes use gives each the other's answers. So a child closes its copies,
which the parent's do not notice, and connects when it next uses the server.
"""

from __future__ import annotations

import os
from typing import Protocol


class Inherited(Protocol):
    """What a child finds open."""

    def abandon(self) -> None:
        """Let go of the connections: they are the parent's."""

    def renew(self) -> None:
        """Have connections of one's own; none is made yet."""


_open: set[Inherited] = set()


def keep(client: Inherited) -> None:
    """Have *client* work in forks too."""
    _open.add(client)


def forget(client: Inherited) -> None:
    """Say that *client* is closed; it may never have been kept."""
    _open.discard(client)


def _after_in_child() -> None:
    for each in _open:
        each.abandon()
        each.renew()


os.register_at_fork(after_in_child=_after_in_child)
