"""What runs in a rank's process."""

from __future__ import annotations

import marshal
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pparallel.errors import ClosedError, SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.machine.threads import apply_thread_limit
from pparallel.runtime import printing, remote_errors, stopping
from pparallel.runtime.pools import forwarding, nesting
from pparallel.runtime.pools.values import unread, unsent
from pparallel.runtime.processes import forget_in_children
from pparallel.runtime.ranks.kinds import FAILURE, FORWARDED, PRINTED, RESULT, TOLD
from pparallel.runtime.resources import start_thread
from pparallel.runtime.shm import Parcels
from pparallel.runtime.stopping import StopSignal
from pparallel_process.launcher.cargo import Cargo, unpacked
from pparallel_process.launcher.messages import STOP, Start
from pparallel_process.wire.channel import Channel
from pparallel_process.wire.outset import received, taken

Call = tuple[Callable[..., object], tuple[object, ...]]  #: a function, and what follows the rank


def main(payload: bytes, fds: Sequence[int]) -> None:
    """Run a rank and say what came of it.

    Args:
        payload: a ``Start``, written by :mod:`marshal`.
        fds: the channel's socket, the file that holds the call if that is large, and what goes
            with it.

    Raises:
        SystemExit: it failed.
    """
    start = Start(*marshal.loads(payload))
    sock, *files = fds
    handed = taken(start.papers, files)
    channel = Channel(socket.socket(fileno=sock), Parcels(None, {}))
    forget_in_children(sock)  # a fork of this process must not keep the channel open
    nesting.enter(start.depth)
    serializer: Serializer = pickle.loads(start.serializer)
    if start.threads is not None:
        apply_thread_limit(start.threads)
    teller = _Teller(channel, serializer)
    forwarder = forwarding.install(start.forwarding, start.name, teller.forward)
    flush = printing.hand_on(teller.print) if start.prints else _nothing
    signal = StopSignal()
    listener = threading.Thread(
        target=_listen, args=(channel, serializer, signal), name="pparallel-rank", daemon=True
    )
    try:
        start_thread(listener)
        with stopping.running_under(signal, teller.tell if start.hears else None):
            fn, args = _call(start, files, handed, serializer)
            value = fn(start.rank, *args)
        teller.result(start.rank, value, last=(flush, forwarder.flush))
    except BaseException as error:  # noqa: BLE001 - raised where the ranks are joined
        teller.failure(error, last=(flush, forwarder.flush))
        sys.exit(error.code if isinstance(error, SystemExit) else 1)


class _Teller:
    """Says things to the launching process; any thread may."""

    def __init__(self, channel: Channel, serializer: Serializer) -> None:
        self._channel, self._serializer = channel, serializer
        self._pid = os.getpid()
        self._may_wait = False

    def tell(self, obj: object) -> None:
        """Have *obj* heard there.

        Raises:
            SerializationError: it cannot be sent.
        """
        if os.getpid() == self._pid:  # in a fork of the rank the channel is not its own
            self._send(TOLD, Cargo(self._serializer.dumps(obj)))

    def print(self, stream: str, text: str) -> None:
        """Have *text* printed there."""
        if os.getpid() == self._pid:
            self._channel.send((PRINTED, stream, text))
        else:
            getattr(sys, f"__{stream}__").write(text)

    def forward(self, content: bytes) -> bool:
        """Hand on what was logged; return False if that had to wait."""
        if not self._may_wait:
            return self._channel.try_to_send((FORWARDED, content))
        self._channel.send((FORWARDED, content))
        return True

    def result(self, rank: int, value: object, last: Sequence[Callable[[], None]]) -> None:
        """Say what the rank has returned, after all that it said before.

        Raises:
            SerializationError: it cannot be sent.
            OSError: there is no memory for it.
        """
        what = f"the result of rank {rank}"
        try:
            cargo = Cargo(self._serializer.dumps(value))
        except (SerializationError, OSError, MemoryError) as error:
            if isinstance(error, SerializationError):
                error.locate({"": "result"})
            error.add_note(f"it was {what}")
            raise
        except Exception as error:
            raise unsent(what, error) from error
        self._finish(RESULT, cargo, last)

    def failure(self, error: BaseException, last: Sequence[Callable[[], None]]) -> None:
        """Say what the rank has failed by, after all that it said before."""
        envelope = remote_errors.pack(error, self._serializer, exits=True)
        self._finish(FAILURE, Cargo([marshal.dumps(tuple(envelope))]), last)

    def _finish(self, kind: int, cargo: Cargo, last: Sequence[Callable[[], None]]) -> None:
        self._may_wait = True
        for flush in last:
            flush()
        self._send(kind, cargo)

    def _send(self, kind: int, cargo: Cargo) -> None:
        try:
            self._channel.send((kind, cargo.head), cargo.files)
        finally:
            cargo.close()


def _call(start: Start, files: list[int], handed: list[int], serializer: Serializer) -> Call:
    with nesting.LOADING:
        try:
            buffers = unpacked(start.call, files, alone=False)
            call: Call = received(start.papers, buffers, handed, serializer)
        except Exception as error:
            raise unread(f"what rank {start.rank} is to run", error) from error
    return call


def _listen(channel: Channel, serializer: Serializer, signal: StopSignal) -> None:
    """Have *signal* set when the launching process says so, or is gone."""
    try:
        while (received := channel.receive(0)) is not None:
            (kind, envelope), _ = received
            if kind == STOP:
                signal.set(_reason(envelope, serializer))
    except EOFError:
        signal.set(ClosedError("the launching process", "has ended", consequence=True))


def _reason(envelope: tuple[Any, ...] | None, serializer: Serializer) -> BaseException | None:
    if envelope is None:
        return None
    return remote_errors.unpack(envelope, "launcher", serializer, exits=True, kind="process")


def _nothing() -> None:
    """Stand for what flushes nothing."""
