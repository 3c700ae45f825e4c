"""Signals in children: none is lost while a child is set up, and none does what is the parent's."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: what a terminal or a supervisor sends to the whole group; children decide for themselves, but
#: not before they have been set up, and a fork server lives as long as its parent
OF_GROUPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@contextmanager
def held_back() -> Iterator[None]:
    """Hold signals back from this thread, and from what it starts inside until that is set up."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_GROUPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reset() -> None:
    """Handle signals as a child does."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # A handler that is None is not Python's, such as faulthandler's.
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    # Ignoring it would be passed on to the programs that the child executes; a handler is not.
    signal.signal(signal.SIGINT, _do_nothing)


def let_through() -> None:
    """Let those through that were held back while this process was set up."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Stand for the handler of a signal that is the parent's to act on."""
