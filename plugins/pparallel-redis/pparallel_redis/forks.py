"""What becomes of connections when the process forks: the child makes its own.

A connection that two processes use gives each the other's answers. So a child closes its copies,
which the parent's do not notice, and connects when it next uses the server.
"""

from __future__ import annotations

import os

from pparallel_redis.client import Client

_open: set[Client] = set()


def keep(client: Client) -> None:
    """Have *client* work in forks too."""
    _open.add(client)


def forget(client: Client) -> None:
    """Say that *client* is closed."""
    _open.discard(client)


def _after_in_child() -> None:
    for each in _open:
        each.abandon()
        each.renew()


os.register_at_fork(after_in_child=_after_in_child)
