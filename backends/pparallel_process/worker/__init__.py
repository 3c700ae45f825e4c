"""What runs in a worker's process."""

from __future__ import annotations

import logging
import marshal
import os
import pickle
import socket
from collections.abc import Sequence
from typing import Any

from pparallel.interfaces.serializer import Serializer
from pparallel.machine.threads import apply_thread_limit
from pparallel.runtime import bars, remote_errors
from pparallel.runtime.pools import forwarding, nesting
from pparallel.runtime.pools.board import Board, Spot
from pparallel.runtime.pools.messages import FAILED, FORWARDED, READY
from pparallel.runtime.pools.worker import memory, preparation
from pparallel.runtime.pools.worker.loop import Loop
from pparallel.runtime.processes import forget_in_children, main_module
from pparallel.runtime.shm import Arena, Parcels
from pparallel_process.telling import stacks
from pparallel_process.wire.channel import Channel
from pparallel_process.wire.outset import received, taken
from pparallel_process.wire.start import Start

__all__ = ["main"]


def main(payload: bytes, fds: Sequence[int]) -> None:
    """Run tasks until the pool closes the channel.

    Args:
        payload: a ``Start``, written by :mod:`marshal`.
        fds: the channel's socket, the board, the file for stack dumps, the pool's arena if it has
            one, and what goes with the preparation.
    """
    start = Start(*marshal.loads(payload))
    sock, board, dumps, *pools = fds
    handed = taken(start.papers, pools)
    arenas = dict(enumerate(map(Arena.attach, pools)))
    own = _own_arena(start.name, start.budget)
    parcels = Parcels(own, arenas)
    channel = Channel(socket.socket(fileno=sock), parcels)
    forget_in_children(sock)  # a fork of this process must not keep the channel open
    nesting.enter(start.depth)
    main_module.follows_caller = True
    stacks.register(dumps)
    forwarder = forwarding.install(
        start.forwarding, start.name, lambda content: channel.try_to_send((FORWARDED, content))
    )
    serializer: Serializer = pickle.loads(start.serializer)
    bars.hide()
    memory.keep_warm(start.warm)
    if start.threads is not None:
        apply_thread_limit(start.threads)
    preparation.seed(pickle.loads(start.streams))
    try:
        with nesting.LOADING:
            prepared: Any = received(start.papers, start.preparation, handed, serializer)
        context = preparation.prepare(*prepared)
    except BaseException as error:  # noqa: BLE001 - told to those whose tasks cannot run
        forwarder.flush()
        _tell_failure(channel, remote_errors.pack(error, serializer, exits=True))
        return
    channel.send((READY,), [] if own is None else [own.fd])
    spot = Spot(Board(board), start.number)
    for each in (board, *pools):
        os.close(each)
    Loop(
        channel,
        parcels,
        serializer.carrying("own"),  # its caller has the rest
        spot,
        context,
        idle=forwarder.flush,
        arena=own,
        keeps=start.keeps,
    ).run()
    forwarder.flush()


def _tell_failure(channel: Channel, envelope: remote_errors.Envelope) -> None:
    # The pool does not know this process's arena yet: what is long goes through a file, which is
    # nothing to warn of.
    logging.getLogger(Parcels.__module__).disabled = True
    channel.use(Parcels(None, {}))
    channel.send((FAILED, tuple(envelope)))


def _own_arena(name: str, budget: int | None) -> Arena | None:
    try:
        return Arena.create(name, budget)
    except OSError:
        return None  # large results go through files, and the parcels say so
