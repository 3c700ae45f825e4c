"""Trying again while another process has the file locked."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from pparallel_servers.sqlite.faults import is_busy

T = TypeVar("T")

FIRST = 0.0001  #: seconds of the first pause
LONGEST = 0.005  #: seconds of the longest


def patiently(act: Callable[[], T], timeout: float) -> T:
    """Return what *act* does, once the file is not locked.

    Raises:
        sqlite3.Error: it is locked for *timeout* seconds, or something else is wrong.
        BlockingIOError: *act* has met a lock of the system's for so long.
    """
    deadline, pause = time.monotonic() + timeout, FIRST
    while True:
        try:
            return act()
        except (sqlite3.OperationalError, BlockingIOError) as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)
