"""The requests of one sending thread, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from time import monotonic

from pparallel.runtime.thread_progress import WINDOW, Progress, is_under_way, look

Job = Callable[[], None]

#: Seconds after which the requests behind a running one go on even if it does not seem to.
PATIENCE = 0.5
_FIRST_LOOK = WINDOW / 4


class Stream:
    """The requests of one sending thread, in order.

    Attributes:
        jobs: taken with a lock held, by the thread that works on it or by one that takes over.
        own: to be run before them. Only the thread that works on it takes one, from the left and
            without a lock, until :meth:`share` takes them, from the right.
        is_shared: whether there are to be no more of those.
    """

    __slots__ = (
        "began",
        "is_shared",
        "jobs",
        "key",
        "look_at",
        "own",
        "owner",
        "quickly",
        "seen",
        "since",
        "thread",
    )

    def __init__(self, key: Hashable, thread: int = 0, *, quickly: bool = False) -> None:
        """Know whose they are.

        Args:
            key: of the sender.
            thread: native id of the one that works on it, without a token; 0: none does yet.
            quickly: whether others wait for that thread.
        """
        self.key = key
        self.jobs: deque[Job] = deque()
        self.own: deque[Job] = deque()
        self.owner: object | None = None  # the token of the thread that works on it
        self.thread = thread
        self.since = 0.0  # when its running job started; 0: it only waits
        self.began = 0.0  # when it started, whatever it does
        self.look_at = 0.0  # when to look whether that job is under way
        self.seen: Progress | None = None
        self.is_shared = False
        self.quickly = quickly
        if thread:
            self.owner = self
            self.begin()

    def begin(self) -> None:
        """Say that a job starts now."""
        self.began = self.since = now = monotonic()
        self.look_at = now + _FIRST_LOOK
        self.seen = None
        self.is_shared = False

    def take(self) -> Job:
        """Return the next job, which starts now."""
        # As begin(), which would cost as much again.
        self.began = self.since = now = monotonic()
        self.look_at = now + _FIRST_LOOK
        self.seen = None
        return self.jobs.popleft()

    def share(self) -> None:
        """Let others take what is left; called with the lock held."""
        if not self.is_shared:
            self.is_shared, self.seen, self.look_at = True, None, self.since + _FIRST_LOOK
        own, jobs = self.own, self.jobs
        while own:
            with suppress(IndexError):  # its thread has taken the last one
                jobs.appendleft(own.pop())

    def is_under_way(self, now: float) -> bool:
        """Return whether the running job has begun for good, so that the next may start."""
        if now < self.look_at:
            return False
        self.look_at = now + WINDOW
        seen, self.seen = self.seen, look(self.thread)
        if now - self.since >= PATIENCE or self.since == 0.0:
            return True
        return seen is not None and self.seen is not None and is_under_way(seen, self.seen)
