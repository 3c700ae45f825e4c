"""A store of torch's that is kept by a member of the job, so that no port is opened for it."""

from __future__ import annotations

import time
from concurrent.futures import Future
from datetime import timedelta

from torch._C._distributed_c10d import Store
from typing_extensions import override

from pparallel.errors import CallTimeoutError
from pparallel.runtime.collectives import GroupId
from pparallel.runtime.rpc import Reply
from pparallel_torch.collective.desk import Desk
from pparallel_torch.collective.ends import Ends

_PAUSE = 0.05  #: seconds between two looks whether somebody has left


class JobStore(Store):
    """Bytes under keys, which the members of a group put and find while torch connects them.

    torch calls it from C++. It must be kept as long as torch uses it: what torch keeps is not the
    whole object.

    Args:
        desk: how members ask one another.
        group: whose store it is.
        first: the name of the member that keeps the values.
        ends: wakes who waits.
        timeout: seconds that a value may take to come; and all, as long as :attr:`until` holds.

    Attributes:
        until: the time by which torch must have connected; without limit once it has.
        seen: all values that this member has put or found; gloo's are its members' addresses.
    """

    def __init__(self, desk: Desk, group: GroupId, first: str, ends: Ends, timeout: float) -> None:
        super().__init__()
        self.seen: set[bytes] = set()
        self._desk, self._group, self._first = desk, group, first
        self._ends, self._limit = ends, timeout
        self.until = time.monotonic() + timeout

    @override
    def set(self, key: str, value: str | bytes) -> None:
        data = _bytes(value)
        self.seen.add(data)
        self._ask("set", key, data)

    @override
    def get(self, key: str) -> bytes:
        found: bytes = self._ask("get", key).body
        self.seen.add(found)
        return found

    @override
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for each in keys:
            self._ask("get", each)

    @override
    def check(self, keys: list[str]) -> bool:
        return all(self._ask("has", each).body for each in keys)

    @override
    def add(self, key: str, value: int) -> int:
        total: int = self._ask("add", key, value).body
        return total

    @override
    def compare_set(
        self, key: str, expected_value: str | bytes, desired_value: str | bytes
    ) -> bytes:
        found: bytes = self._ask("swap", key, _bytes(expected_value), _bytes(desired_value)).body
        return found

    @override
    def delete_key(self, key: str) -> bool:
        deleted: bool = self._ask("delete", key).body
        return deleted

    def _ask(self, kind: str, key: str, *rest: object) -> Reply:
        asked = self._desk.ask(self._first, kind, self._group, key, *rest)
        deadline = min(self.until, time.monotonic() + self._limit)
        while not _came(asked):
            self._ends.check_all_here()
            if time.monotonic() > deadline:
                raise CallTimeoutError(f"what torch waits for ({key})", self._limit)
        return asked.result()


def _came(asked: Future[Reply]) -> bool:
    try:
        asked.result(_PAUSE)
    except TimeoutError:
        return asked.done()
    return True


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
