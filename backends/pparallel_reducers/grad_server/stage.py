"""A bounded queue and the thread that works it off."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

from pparallel.errors import ClosedError
from pparallel.runtime.future import fail, settle

logger = logging.getLogger(__name__)

M = TypeVar("M")


class _Place(NamedTuple, Generic[M]):
    message: M | None
    queued: Future[None]
    job: Callable[[], None] | None = None  # instead of a message


class Stage(Generic[M]):
    """Takes messages one by one on a thread of its own.

    A message is acknowledged once it is among the first *limit* in the queue: whoever waits for
    that cannot outrun the thread, and nothing is dropped. What the thread raises ends it, is kept
    as :attr:`error`, and refuses all that wait and all that come later.
    """

    def __init__(self, name: str, limit: int, take: Callable[[M], None]) -> None:
        self._name = name
        self._limit = limit
        self._take = take
        self._changed = threading.Condition()
        self._places: deque[_Place[M]] = deque()
        self._ended: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def put(self, message: M) -> Future[None]:
        """Queue *message*; the future is done when it is acknowledged, or fails. Never blocks."""
        return self._put(_Place(message, Future[None]()))

    def run(self, job: Callable[[], None]) -> Future[None]:
        """Have *job* run once all that was put before is taken; done when that is done."""
        return self._put(_Place(None, Future[None](), job))

    def end(self, reason: BaseException) -> None:
        """Refuse what waits and what comes, with *reason*; safe to call again, and anywhere."""
        with self._changed:
            if self._ended is not None:
                return
            self._ended = reason
            waiting = list(self._places)
            self._places.clear()
            self._changed.notify_all()
        for place in waiting:
            fail(place.queued, reason)

    def join(self) -> None:
        """Wait until the thread has ended, after :meth:`end`."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_current(self) -> bool:
        """Whether this is called on the thread itself."""
        return self._thread is threading.current_thread()

    def _put(self, place: _Place[M]) -> Future[None]:
        with self._changed:
            ended = self._ended
            if ended is None:
                self._places.append(place)
                self._changed.notify_all()
            room = len(self._places) <= self._limit
        if ended is not None:
            place.queued.set_exception(ended)
        elif room and place.job is None:
            settle(place.queued, None)
        return place.queued

    def _run(self) -> None:
        try:
            while (place := self._next()) is not None:
                self._work_off(place)
                del place  # a message is large: it is not kept while waiting for the next
        except ClosedError as error:
            self._fail(error)
        except BaseException as error:
            logger.exception("%s failed", self._name)
            self._fail(error)

    def _work_off(self, place: _Place[M]) -> None:
        if place.message is not None:
            self._take(place.message)
            return
        assert place.job is not None
        try:
            place.job()
        except BaseException as error:
            fail(place.queued, error)
            raise
        settle(place.queued, None)

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self.end(error)

    def _next(self) -> _Place[M] | None:
        """Wait for the next place, acknowledge the one that moves up; None ends the thread."""
        with self._changed:
            while not self._places and self._ended is None:
                self._changed.wait()
            if self._ended is not None:
                return None
            place = self._places.popleft()
            moved = self._places[self._limit - 1] if len(self._places) >= self._limit else None
        if moved is not None and moved.job is None:
            settle(moved.queued, None)
        return place
