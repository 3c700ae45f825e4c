"""Notices when one thing takes long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pparallel.runtime.thread_progress import COMPUTED, WINDOW, Progress, is_under_way, look

logger = logging.getLogger(__name__)

LONGEST = 0.05  #: seconds after which a thread is noticed that only seems to wait to run
_IDLE = 50  #: looks in vain after which it looks no more until something begins


class Patience:
    """Calls a function when what a thread has begun has not ended after a while.

    It looks now and then, in a thread of its own, as long as things begin; to begin and to end
    something costs next to nothing.
    """

    def __init__(self, limit: float, lost: Callable[[threading.Thread], bool]) -> None:
        """Know the limit.

        Args:
            limit: seconds. What computes is noticed after about twice as many, what is blocked
                some milliseconds later: it looks as if it only waited for the GIL at first.
            lost: called with the thread, and again after a while if it returns False: it did not
                find the thread at what it had begun.
        """
        self._limit, self._lost = limit, lost
        self._since = 0.0  # when the thing began; 0: nothing is under way
        self._who: threading.Thread | None = None
        self._seen: tuple[float, float, Progress | None] | None = None  # since, when, what
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
        if self._thread is None and not self._is_closed:
            thread = threading.Thread(target=self._look, name="pparallel-patience", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many threads; perhaps there is room later
                logger.warning("Nobody looks how long a request takes: %s", error)
                self._is_asleep = True
                return
            self._thread = thread
        self._begun.set()

    def _look(self) -> None:
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
            if takes_long and self._is_under_way(who, since) and self._lost(who):
                told = since

    def _is_under_way(self, who: threading.Thread, since: float) -> bool:
        """Return whether *who* computes or is blocked, and not just waiting to run."""
        now, seen = time.monotonic(), look(who.native_id or 0)
        if now - since >= LONGEST:  # one that looks for something now and then seems to do no more
            return True
        if self._seen is None or self._seen[0] != since:
            self._seen = since, now, seen
            return False
        _, at, before = self._seen
        if before is None or seen is None:  # the system does not say
            return True
        if seen.cpu - before.cpu >= COMPUTED:
            return True
        if now - at < WINDOW / 2:
            return False
        self._seen = since, now, seen
        return is_under_way(before, seen)
