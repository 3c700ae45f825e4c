"""The requests of one sending thread, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from time import monotonic

from pparallel.runtime.user_code import has_entered

Job = Callable[[], None]

LONG = 0.005  #: seconds after which the requests behind a running one are taken from its thread
AGAIN = 0.005  #: seconds after which one that had not entered its function is looked at again


class Stream:
    """The requests of one sending thread, in order: the next starts when the last has entered.

    Attributes:
        jobs: taken with a lock held, by the thread that works on it or by one that takes over.
        own: to be run before them. Only the thread that works on it takes one, from the left and
            without a lock, until :meth:`share` takes them, from the right.
        is_shared: whether there are to be no more of those.
        purge_at: number of jobs from which on those that have timed out are looked for.
    """

    __slots__ = (
        "began",
        "is_shared",
        "jobs",
        "key",
        "look_at",
        "own",
        "owner",
        "purge_at",
        "quickly",
        "since",
        "thread",
    )

    def __init__(self, key: Hashable, thread: int = 0, *, quickly: bool = False) -> None:
        """Know whose they are.

        Args:
            key: of the sender.
            thread: ident of the one that works on it, without a token; 0: none does yet.
            quickly: whether others wait for that thread.
        """
        self.key = key
        self.jobs: deque[Job] = deque()
        self.own: deque[Job] = deque()
        self.owner: object | None = None  # the token of the thread that works on it
        self.thread = thread
        self.since = 0.0  # when its running job started; 0: it only waits
        self.began = 0.0  # when it started, whatever it does
        self.look_at = 0.0  # when to look whether that job has entered its function
        self.is_shared = False
        self.purge_at = 64
        self.quickly = quickly
        if thread:
            self.owner = self
            self.begin()

    def begin(self) -> None:
        """Say that a job starts now."""
        self.began = self.since = now = monotonic()
        self.look_at = now + LONG
        self.is_shared = False

    def take(self) -> Job:
        """Return the next job, which starts now."""
        self.began = self.since = now = monotonic()
        self.look_at = now + LONG
        return self.jobs.popleft()

    def share(self) -> None:
        """Let others take what is left; called with the lock held."""
        if not self.is_shared:
            self.is_shared, self.look_at = True, self.since + LONG
        own, jobs = self.own, self.jobs
        while own:
            with suppress(IndexError):  # its thread has taken the last one
                jobs.appendleft(own.pop())

    def is_under_way(self, now: float) -> bool:
        """Return whether the running job has entered its function, so that the next may start."""
        if now < self.look_at:
            return False
        self.look_at = now + AGAIN
        return self.since == 0.0 or has_entered(self.thread)
