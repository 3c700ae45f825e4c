"""End the process soon after Ctrl-C, whatever its threads do."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE = 1.7  #: seconds from Ctrl-C to the end; launchers give ranks 1.5 of them
FLUSH = 0.1  #: seconds that flushing may take: a full pipe must not keep the process alive
INTERRUPTED = 130


@contextmanager
def ending_on_interrupt(last_words: Callable[[], None]) -> Iterator[None]:
    """Leave the process with code 130 if it is still there a moment after Ctrl-C.

    The main thread gets its ``KeyboardInterrupt`` as always. A second Ctrl-C does not wait. The
    wake-up descriptor is written by the C signal handler: it works while the main thread is
    inside C code that never looks for signals.

    Args:
        last_words: called before the end; may block, and is then not waited for.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & leaves it ignored
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(
        target=_watch, args=(ours, last_words), name="pparallel-interrupts", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
        watcher.join()
        ours.close()


def leave(code: int, last_words: Callable[[], None]) -> None:
    """End the process at once with exit code *code*, without waiting for its threads."""
    speaker = threading.Thread(target=last_words, daemon=True)
    speaker.start()
    speaker.join(FLUSH)
    os._exit(code)


def _watch(signals: socket.socket, last_words: Callable[[], None]) -> None:
    interrupts, deadline = 0, math.inf
    while interrupts < 2 and time.monotonic() < deadline:
        signals.settimeout(max(0.0, deadline - time.monotonic()) if interrupts else None)
        try:
            received = signals.recv(64)
        except (TimeoutError, BlockingIOError):
            break
        if not received:  # the command has ended
            return
        interrupts += received.count(signal.SIGINT)
        deadline = min(deadline, time.monotonic() + GRACE) if interrupts else deadline
    leave(INTERRUPTED, last_words)
