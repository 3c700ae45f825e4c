"""The world of this process, of which there is one at most."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pparallel.compat.machin.distributed.world import World

_lock = threading.Lock()
_pid = 0  # of the process whose world it is: a child that is forked has none
_world: World | None = None


def claim(world: World) -> None:
    """Make *world* the one of this process.

    Raises:
        RuntimeError: there is one already.
    """
    global _pid, _world
    with _lock:
        if get_world() is not None:
            message = (
                "this process is in a world already, and a process is in one at a time: "
                "stop() that one first"
            )
            raise RuntimeError(message)
        _pid, _world = os.getpid(), world


def give_up(world: World) -> None:
    """Have no world any more, if it is this one."""
    global _world
    with _lock:
        if _world is world:
            _world = None


def get_world() -> World | None:
    """Return the world of this process; ``None``: it is in none."""
    return _world if _pid == os.getpid() else None


def is_world_initialized() -> bool:
    """Return whether this process is in a world."""
    return get_world() is not None


def joined_world() -> World:
    """Return the world of this process.

    Raises:
        RuntimeError: it is in none.
    """
    world = get_world()
    if world is None:
        message = "this process is in no world: make one first, with World(name, rank, world_size)"
        raise RuntimeError(message)
    return world


def get_cur_rank() -> int:
    """Return the rank of this process.

    Raises:
        RuntimeError: it is in no world.
    """
    return joined_world().rank


def get_cur_name() -> str:
    """Return the name of this process among the members of its world.

    Raises:
        RuntimeError: it is in no world.
    """
    return joined_world().name
