"""A thread that waits for what is new."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from pparallel.interfaces.ordered_server import Found, OrderedServer
from pparallel.testing.machines.machine import LIMIT

_SETTLES = 0.002  #: seconds in which a thread begins to wait, mostly; nothing depends on it


class Waiter:
    """Calls ``wait`` in a thread of its own."""

    def __init__(self, server: OrderedServer, key: Hashable, version: Hashable | None) -> None:
        self.key, self.version = key, version
        self.server = server
        self._found: Found | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, name="machine-waiter", daemon=True)
        self._thread.start()
        self._thread.join(_SETTLES)

    def is_waiting(self) -> bool:
        """Return whether nothing has come."""
        return self._thread.is_alive()

    def outcome(self) -> Found | BaseException | None:
        """Return what it found, or was raised; fail if it waits on."""
        self._thread.join(LIMIT)
        assert not self.is_waiting(), (
            f"wait({self.key!r}, {self.version!r}) did not return within {LIMIT} s"
        )
        return self._error or self._found

    def _wait(self) -> None:
        try:
            self._found = self.server.wait(self.key, self.version)
        except BaseException as error:  # noqa: BLE001 - looked at by the machine
            self._error = error
