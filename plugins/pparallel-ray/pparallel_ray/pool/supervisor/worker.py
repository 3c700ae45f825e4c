"""What runs in a worker's process."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from typing import Any

from pparallel.interfaces.serializer import Serializer
from pparallel.machine.threads import apply_thread_limit
from pparallel.runtime import bars, remote_errors
from pparallel.runtime.pools import forwarding, nesting
from pparallel.runtime.pools.board import Board, Spot
from pparallel.runtime.pools.messages import FAILED, FORWARDED, READY
from pparallel.runtime.pools.values import unread
from pparallel.runtime.pools.worker import preparation
from pparallel.runtime.pools.worker.loop import Loop
from pparallel.runtime.processes import forget_in_children, main_module
from pparallel_ray.pool.supervisor.limits import own_memory
from pparallel_ray.pool.wire.channel import Channel
from pparallel_ray.pool.wire.orders import Start
from pparallel_ray.pool.wire.parcels import Parcels

__all__ = ["main"]

logger = logging.getLogger(__name__)


def main(_: bytes, fds: Sequence[int]) -> None:
    """Run tasks until the pool closes the channel, on which it has said what to start with.

    Args:
        fds: the channel's socket, and the board.
    """
    sock, memory = fds
    channel = Channel(socket.socket(fileno=sock), patient=True)
    forget_in_children(sock)  # a fork of this process must not keep the channel open
    try:
        received = channel.receive(0)
    except EOFError:
        return
    assert received is not None
    start = Start(*received[0])
    _settle(start)
    forwarder = forwarding.install(
        start.forwarding, start.name, lambda content: channel.try_to_send((FORWARDED, content))
    )
    serializer: Serializer = pickle.loads(start.serializer)
    try:
        context = _prepared(start, serializer)
    except BaseException as error:  # noqa: BLE001 - told to those whose tasks cannot run
        forwarder.flush()
        channel.send(
            (FAILED, os.getpid(), tuple(remote_errors.pack(error, serializer, exits=True)))
        )
        return
    # Measured here: who watches over it may come to that only when it has run something.
    channel.send((READY, os.getpid(), own_memory(os.getpid())))
    spot = Spot(Board(memory), 0)
    os.close(memory)
    Loop(
        channel,
        Parcels(),
        serializer,
        spot,
        context,
        idle=forwarder.flush,
        arena=None,
        keeps=False,
    ).run()
    forwarder.flush()


def _settle(start: Start) -> None:
    """Have the surroundings of the pool's process, as far as they are on this machine too."""
    nesting.enter(start.depth)
    main_module.follows_caller = True
    main_module.install(start.main)
    sys.argv[:] = start.argv
    bars.hide()
    known = set(sys.path)
    sys.path.extend(each for each in start.path if each not in known and os.path.exists(each))
    if os.path.isdir(start.folder):
        os.chdir(start.folder)
    if start.threads is not None:
        apply_thread_limit(start.threads)


def _prepared(start: Start, serializer: Serializer) -> tuple[Any, ...]:
    preparation.seed(pickle.loads(start.streams))
    with nesting.LOADING:
        try:
            prepared: Any = serializer.loads(start.preparation)
        except Exception as error:  # noqa: BLE001 - the user's hooks may raise anything
            refused = unread("the initializer or its arguments", error)
            raise refused from refused.__cause__
    return preparation.prepare(*prepared)
