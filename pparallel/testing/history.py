"""A history checker: were operations on an ordered server linearizable?

Record what members do with a :class:`Recorder`, put the operations of all together, and
:func:`check` them: for each key there must be one order of the operations, in which each lies
between its call and its return, that a server doing one thing at a time could have produced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.testing.linearizability.checking import check
from pparallel.testing.linearizability.operation import Operation, Unknown

__all__ = ["Operation", "Recorder", "Unknown", "check"]


class Recorder:
    """Does what an ordered server does, and writes it down; one for each thread."""

    def __init__(self, server: OrderedServer, member: str = "") -> None:
        self._server = server
        self._member = member
        self.operations: list[Operation] = []

    def push(self, key: Hashable, value: Any, version: Hashable, prev_version: Any) -> bool:
        """Push; *value* is hashable."""
        arguments = (value, version, prev_version)
        return bool(self._record(key, "push", arguments, self._server.push))

    def pull(self, key: Hashable, version: Hashable | None = None) -> Any:
        """Pull."""
        return self._record(key, "pull", (version,), self._server.pull)

    def wait(self, key: Hashable, version: Hashable | None, timeout: float) -> Any:
        """Wait."""
        return self._record(key, "wait", (version, timeout), self._server.wait)

    def versions(self, key: Hashable) -> Any:
        """Ask for the versions."""
        return self._record(key, "versions", (), self._server.versions)

    def delete(self, key: Hashable) -> bool:
        """Delete."""
        return bool(self._record(key, "delete", (), self._server.delete))

    def _record(
        self, key: Hashable, name: str, arguments: tuple[Any, ...], call: Callable[..., Any]
    ) -> Any:
        result: Any = Unknown()
        start = time.monotonic()
        try:
            result = call(key, *arguments)
        finally:
            end = time.monotonic()
            self.operations.append(
                Operation(key, name, arguments, result, start, end, self._member)
            )
        return result
