"""Notices when one thing takes long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pparallel.errors import ResourceExhaustedError
from pparallel.runtime import dedicated
from pparallel.runtime.resources import start_thread
from pparallel.runtime.user_code import has_entered

logger = logging.getLogger(__name__)

LONGEST = 0.05  #: seconds after which a thread is noticed that has entered no function of a user
UNSEEN = "Nobody has looked how long a request takes; that is tried again"
_IDLE = 50  #: looks in vain after which it looks no more until something begins


class Patience:
    """Calls a function when what a thread has begun has not ended after a while.

    It looks now and then, in a thread of its own, as long as things begin; to begin and to end
    something costs next to nothing.
    """

    def __init__(self, limit: float, lost: Callable[[threading.Thread], bool]) -> None:
        """Know the limit.

        Args:
            limit: seconds, after which a thread is noticed that has entered a function of a user.
            lost: called with the thread, and again after a while if it returns False: it did not
                find the thread at what it had begun.
        """
        self._limit, self._lost = limit, lost
        self._since = 0.0  # when the thing began; 0: nothing is under way
        self._who: threading.Thread | None = None
        self._begun = threading.Event()
        self._is_asleep = True
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def begin(self, who: threading.Thread) -> None:
        """Say that *who* begins something."""
        self._who, self._since = who, time.monotonic()
        if self._is_asleep:
            self._is_asleep = False
            self._wake()

    def end(self, who: threading.Thread) -> None:
        """Say that *who* is done."""
        if self._who is who:
            self._since = 0.0

    def close(self) -> None:
        """End the thread and wait for that; safe to call again."""
        self._is_closed = True
        self._begun.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _wake(self) -> None:
        try:
            if self._thread is None and not self._is_closed:
                thread = threading.Thread(target=self._look, name="pparallel-patience", daemon=True)
                self._thread = start_thread(thread)
            self._begun.set()
        except (ResourceExhaustedError, MemoryError, RuntimeError) as error:
            self._is_asleep = True  # the next one tries again
            logger.warning("Nothing looks how long a request takes: %s", error)

    def _look(self) -> None:
        while not self._is_closed:
            try:
                self._look_on()
            except BaseException:  # noqa: BLE001 - logged; without this thread no role is passed on
                log_failure(logger, UNSEEN)
                time.sleep(LONGEST)

    def _look_on(self) -> None:
        dedicated.mark_receiving()
        in_vain, told = 0, 0.0  # looks, and when that began of which has been told
        pause = threading.Event()
        while not self._is_closed:
            if in_vain > _IDLE:
                self._begun.clear()
                self._is_asleep = True
                # Or it began or was closed just now, by who saw nobody asleep.
                if self._since in (0.0, told) and not self._is_closed:
                    self._begun.wait()
                self._is_asleep = False
                in_vain = 0
            pause.wait(self._limit)
            # Only who begins and ends something writes these: it may be at the next thing already.
            who, since = self._who, self._since
            if who is None or since in (0.0, told):
                in_vain += 1
                continue
            in_vain = 0
            takes_long = time.monotonic() - since > self._limit
            if takes_long and _is_under_way(who, since) and self._lost(who):
                told = since


def _is_under_way(who: threading.Thread, since: float) -> bool:
    return time.monotonic() - since >= LONGEST or has_entered(who.ident or 0)


def log_failure(to: logging.Logger, message: str) -> None:
    """Log the exception that is handled, if there is memory for that."""
    try:  # noqa: SIM105 - contextlib.suppress() takes memory itself
        to.exception(message)
    except (MemoryError, RuntimeError):
        pass
