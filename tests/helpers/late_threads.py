"""Threads that are about to start, as in a process that a signal stops just then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typing_extensions import override


@contextmanager
def held_back() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Have threads that are made inside start late.

    Yields:
        What is set when one is about to start, and what lets it.
    """
    starting, goes_on = threading.Event(), threading.Event()

    class LateThread(threading.Thread):
        @override
        def start(self) -> None:
            starting.set()
            assert goes_on.wait(10)
            super().start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "Thread", LateThread)
        yield starting, goes_on
