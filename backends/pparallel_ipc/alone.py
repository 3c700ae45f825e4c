"""One thread at a time, where others need not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

_AT_ONCE = (False,)


def alone(lock: threading.Lock | threading.RLock, act: Callable[[], object]) -> bool:
    """Call *act* with *lock* held, and return True; or return False, for it is held already.

    The lock is free afterwards wherever a signal's handler raises: none runs between taking the
    lock and the note of that.
    """
    held: list[bool] = []
    try:
        held.extend(map(lock.acquire, _AT_ONCE))
        if held[0]:
            act()
        return held[0]
    finally:
        if True in held:
            lock.release()
