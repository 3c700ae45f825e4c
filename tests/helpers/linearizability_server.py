"""A small durable ordered server: a process that keeps a log, and what clients ask it by."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from linearizability_faults import Around
from typing_extensions import override

from pparallel.errors import PeerLostError
from pparallel.interfaces.ordered_server import Found, OrderedServer
from pparallel.runtime import processes
from pparallel.testing.linearizability.model import MODEL, State
from pparallel.testing.linearizability.performing import Wrap
from pparallel.testing.patience import PATIENCE, until

DEPTH = 3


class LogServer:
    """The server's process.

    Args:
        folder: where its log and its socket are.
        hasty: it acknowledges what it has yet to write.
    """

    def __init__(self, folder: Path, *, hasty: bool) -> None:
        self._folder, self._hasty = folder, hasty
        self._process: processes.Process | None = None

    @property
    def reach(self) -> Wrap:
        """What makes, of any server, one that asks this."""
        return partial(AskedServer, str(self._folder / "socket"))

    def start(self) -> None:
        """Start it on the log that it left; return when it answers."""
        self.close()
        payload = pickle.dumps((self._folder, self._hasty))
        serve = f"{__name__}:serve"
        self._process = processes.start(serve, payload, name="log-server", preload=[__name__])
        until(self._answers, "the server does not answer")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.signal(number)

    def close(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
            assert self._process.ended(PATIENCE)
            self._process.close()
            self._process = None

    def _answers(self) -> bool:
        with suppress(OSError), Client(str(self._folder / "socket")):
            return True
        return False


class AskedServer(Around):
    """Asks the process, over one connection that it makes again when that has ended."""

    def __init__(self, address: str, inner: OrderedServer) -> None:
        super().__init__(inner)
        self._address = address
        self._connection: Connection | None = None

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        return bool(self._ask(key, "push", pickle.dumps(value), version, prev_version))

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(key, "pull", version)

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        end = time.monotonic() + (timeout or 0)
        while True:
            found = self._found(key, "wait", version, 0)
            if found or time.monotonic() >= end:
                return found
            time.sleep(0.0005)

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return list(self._ask(key, "versions"))

    @override
    def delete(self, key: Hashable) -> bool:
        return bool(self._ask(key, "delete"))

    def _found(self, key: Hashable, name: str, *arguments: object) -> Found | None:
        found = self._ask(key, name, *arguments)
        return found and (pickle.loads(found[0]), found[1])

    def _ask(self, key: Hashable, name: str, *arguments: object) -> Any:
        try:
            if self._connection is None:
                self._connection = Client(self._address)
            self._connection.send((key, name, arguments))
            return self._connection.recv()
        except (OSError, EOFError) as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            raise PeerLostError("the server", repr(error)) from error


class _Store:
    """Does one thing at a time, and notes what changes."""

    def __init__(self, log: Path, *, hasty: bool) -> None:
        self._lock, self._hasty = threading.Lock(), hasty
        self._states: defaultdict[Hashable, State] = defaultdict(tuple)
        log.touch()
        whole = 0
        with log.open("rb") as old, suppress(EOFError, pickle.UnpicklingError):
            while True:
                self._do(*pickle.load(old))
                whole = old.tell()
        os.truncate(log, whole)  # of what was being written when it was killed nobody knows
        self._log = log.open("ab")

    def do(self, *asked: Any) -> Any:
        with self._lock:
            result, changed = self._do(*asked)
            if changed:
                pickle.dump(asked, self._log)
                if not self._hasty:
                    self._log.flush()
            return result

    def _do(self, key: Hashable, name: str, arguments: Sequence[Any]) -> tuple[Any, bool]:
        before = self._states[key]
        result, self._states[key] = MODEL[name](before, DEPTH, *arguments)
        return result, self._states[key] != before


def serve(payload: bytes, fds: Sequence[int]) -> None:
    """Be the server: what its process runs until it is killed."""
    folder, hasty = pickle.loads(payload)
    store = _Store(folder / "log", hasty=hasty)
    address = str(folder / "socket")
    with suppress(FileNotFoundError):
        os.unlink(address)
    with Listener(address, backlog=socket.SOMAXCONN) as listener:
        while True:
            threading.Thread(target=_answer, args=(store, listener.accept()), daemon=True).start()


def _answer(store: _Store, connection: Connection) -> None:
    with connection, suppress(OSError, EOFError):
        while True:
            connection.send(store.do(*connection.recv()))
