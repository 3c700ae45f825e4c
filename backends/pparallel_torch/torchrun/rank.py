"""What a rank does: it asks the launching process what to run, and tells it the result."""

from __future__ import annotations

import marshal
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from typing_extensions import Buffer

from pparallel.errors import PeerLostError, is_consequence
from pparallel.interfaces.launcher import GRACE
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import environment, remote_errors, stopping
from pparallel.runtime.links import peer
from pparallel.runtime.processes import lifeline, main_module
from pparallel.runtime.resources import start_thread
from pparallel.runtime.stopping import StopSignal
from pparallel_torch.torchrun import wire
from pparallel_torch.torchrun.order import FAILED, HELLO, RETURNED, SOCKET, TOLD, Order


def main(directory: str) -> NoReturn:
    """Be a rank of the launch that *directory* is of."""
    place = environment.torchrun()
    assert place is not None, "torch's agent has told this process nothing"
    told = _Told()
    signal.signal(signal.SIGTERM, lambda *_: told.begin())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(Path(directory) / SOCKET))
        peer(connection)
        numbers = struct.pack("!III", place.rank, place.local_rank, place.restart)
        wire.send(connection, HELLO, [numbers])
        _, frames, (watched,) = wire.receive(connection, descriptors=1)
        lifeline.tie(watched)
        order = Order.read(frames)
        told.patience = order.patience
        ended_well = _run(place.rank, order, told.signal, connection)
    sys.exit(0 if ended_well else 1)


def _run(rank: int, order: Order, told: StopSignal, connection: socket.socket) -> bool:
    os.environ.update(order.environment)
    sys.argv[:] = order.argv
    main_module.install(order.main)
    serializer: Serializer = pickle.loads(order.serializer)
    teller = _Teller(connection, serializer)
    try:
        function, args = serializer.loads(order.call)
        with stopping.running_under(told, teller.tell if order.hears else None):
            result = serializer.dumps(function(rank, *args))
    except BaseException as error:  # noqa: BLE001 - raised in the launching process
        envelope = tuple(remote_errors.pack(error, serializer, exits=True))
        teller.send(FAILED, [marshal.dumps(envelope)])
        if is_consequence(error) or isinstance(error, PeerLostError):
            # The agent ends all ranks when one has: who knows what went wrong must say so first.
            told.wait(GRACE)
        return False
    teller.send(RETURNED, result)
    return True


class _Teller:
    """Says things to the launching process; any thread may."""

    def __init__(self, connection: socket.socket, serializer: Serializer) -> None:
        self._connection, self._serializer = connection, serializer
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def tell(self, obj: object) -> None:
        """Have *obj* heard there.

        Raises:
            SerializationError: it cannot be sent.
        """
        if os.getpid() == self._pid:  # in a fork of the rank the connection is not its own
            self.send(TOLD, self._serializer.dumps(obj))

    def send(self, kind: int, frames: Sequence[Buffer]) -> None:
        """Send a message."""
        with self._lock:
            wire.send(self._connection, kind, frames)


class _Told:
    """What happens when the agent tells this rank to end.

    Before torch's agent starts ranks again it waits half a minute for those that are left.
    """

    def __init__(self) -> None:
        self.signal = StopSignal()
        self.patience = 0

    def begin(self) -> None:
        """Tell the rank to end; called by the main thread, whatever it is doing."""
        # Not here: this thread may hold whatever lock those who listen want.
        start_thread(threading.Thread(target=self._tell, name="pparallel-stop", daemon=True))

    def _tell(self) -> None:
        self.signal.set()
        time.sleep(self.patience)
        os.kill(os.getpid(), signal.SIGKILL)
