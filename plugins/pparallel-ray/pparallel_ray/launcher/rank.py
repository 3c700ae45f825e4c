"""What runs in a rank's process."""

from __future__ import annotations

import marshal
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from pparallel.errors import ClosedError, SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import member, printing, remote_errors, stopping
from pparallel.runtime.pools import forwarding, nesting
from pparallel.runtime.pools.values import unread, unsent
from pparallel.runtime.processes import forget_in_children, main_module
from pparallel.runtime.ranks.kinds import FAILURE, FORWARDED, PRINTED, RESULT, TOLD
from pparallel.runtime.stopping import StopSignal
from pparallel_ray.launcher import messages
from pparallel_ray.launcher.messages import Start

Call = tuple[Callable[..., object], tuple[object, ...]]  #: a function, and what follows the rank


def main(payload: bytes, fds: Sequence[int]) -> None:
    """Run a rank and say what came of it.

    Args:
        payload: a ``Start``, pickled.
        fds: the socket that leads to the supervisor.

    Raises:
        SystemExit: it failed.
    """
    start = Start(*pickle.loads(payload))
    connection = Connection(fds[0])
    forget_in_children(fds[0])  # a fork of this process must not keep the connection open
    nesting.enter(start.depth)
    main_module.install(start.main)
    serializer: Serializer = pickle.loads(start.serializer)
    teller = _Teller(connection, serializer)
    forwarder = forwarding.install(start.forwarding, start.name, teller.forward)
    flush = printing.hand_on(teller.print)
    signal = StopSignal()
    try:
        fn, args = _call(start, connection, serializer)
        threading.Thread(
            target=_listen,
            args=(connection, serializer, signal),
            name="pparallel-rank",
            daemon=True,
        ).start()
        with (
            stopping.running_under(signal, teller.tell if start.hears else None),
            member.placed(start.local_rank),
        ):
            value = fn(start.rank, *args)
        teller.result(start.rank, value, last=(flush, forwarder.flush))
    except BaseException as error:  # noqa: BLE001 - raised where the ranks are joined
        teller.failure(error, last=(flush, forwarder.flush))
        sys.exit(error.code if isinstance(error, SystemExit) else 1)


class _Teller:
    """Says things to the supervisor, which hands them on; any thread may."""

    def __init__(self, connection: Connection, serializer: Serializer) -> None:
        self._connection, self._serializer = connection, serializer
        self._lock = threading.RLock()
        self._waiting: deque[bytes] = deque()
        self._sender: int | None = None
        self._pid = os.getpid()

    def tell(self, obj: object) -> None:
        """Have *obj* heard where the rank was launched.

        Raises:
            SerializationError: it cannot be sent.
        """
        if os.getpid() == self._pid:  # in a fork of the rank the connection is not its own
            self._send(TOLD, [bytes(each) for each in self._serializer.dumps(obj)])

    def print(self, stream: str, text: str) -> None:
        """Have *text* printed there."""
        if os.getpid() == self._pid:
            self._send(PRINTED, stream, text)
        else:
            getattr(sys, f"__{stream}__").write(text)

    def forward(self, content: bytes) -> bool:
        """Hand on what was logged."""
        self._send(FORWARDED, content)
        return True

    def result(self, rank: int, value: object, last: Sequence[Callable[[], None]]) -> None:
        """Say what the rank has returned, after all that it said before.

        Raises:
            SerializationError: it cannot be sent.
        """
        what = f"the result of rank {rank}"
        try:
            frames = [bytes(each) for each in self._serializer.dumps(value)]
        except (SerializationError, MemoryError) as error:
            if isinstance(error, SerializationError):
                error.locate({"": "result"})
            error.add_note(f"it was {what}")
            raise
        except Exception as error:
            raise unsent(what, error) from error
        self._finish(RESULT, frames, last)

    def failure(self, error: BaseException, last: Sequence[Callable[[], None]]) -> None:
        """Say what the rank has failed by, after all that it said before."""
        envelope = remote_errors.pack(error, self._serializer, exits=True)
        self._finish(FAILURE, [marshal.dumps(tuple(envelope))], last)

    def _finish(self, kind: int, content: object, last: Sequence[Callable[[], None]]) -> None:
        for flush in last:
            flush()
        self._send(kind, content)

    def _send(self, *message: object) -> None:
        self._waiting.append(messages.write(message))
        if self._sender == threading.get_ident():  # a finalizer logs while this thread sends
            return
        with self._lock:
            self._sender = threading.get_ident()
            try:
                while self._waiting:
                    self._connection.send_bytes(self._waiting.popleft())
            finally:
                self._sender = None


def _call(start: Start, connection: Connection, serializer: Serializer) -> Call:
    with nesting.LOADING:
        try:
            call: Call = serializer.loads(messages.receive_buffers(connection))
        except Exception as error:
            raise unread(f"what rank {start.rank} is to run", error) from error
    return call


def _listen(connection: Connection, serializer: Serializer, signal: StopSignal) -> None:
    """Have *signal* set when the launching process says so, or the supervisor is gone."""
    try:
        envelope = pickle.loads(connection.recv_bytes())
    except (EOFError, OSError):
        signal.set(ClosedError("the launching process", "has ended", consequence=True))
        return
    if envelope is None:
        signal.set(None)
    else:
        where = "launcher"
        signal.set(remote_errors.unpack(envelope, where, serializer, exits=True, kind="process"))
