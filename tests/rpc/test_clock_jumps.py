"""Waits that go by a clock which nobody sets."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from pparallel.runtime.shm.mutex import NBYTES, Mutex
from pparallel.testing.patience import PATIENCE


def test_a_wait_for_a_lock_ends_in_time_when_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = ctypes.create_string_buffer(NBYTES)
    mutex = Mutex.make(ctypes.addressof(memory))
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        assert mutex.acquire(PATIENCE)
        taken.set()
        done.wait(PATIENCE)
        mutex.release()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert taken.wait(PATIENCE)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 20)  # as if it had been set back
        began = time.monotonic()
        assert mutex.acquire(0.1) is None
        assert 0.1 <= time.monotonic() - began < 10
    finally:
        done.set()
        holder.join(PATIENCE)
