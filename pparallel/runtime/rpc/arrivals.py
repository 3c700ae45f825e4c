"""Which requests have arrived: none is run twice."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from operator import itemgetter

from typing_extensions import Buffer

from pparallel.interfaces.transport import Frames
from pparallel.runtime.pending import settle


class Arrivals:
    """The requests of one session of one sender, which numbers them from 0 on.

    It remembers the highest number, the ranges of numbers below it that have not arrived, and the
    replies to requests that may come again, until the sender says that it has them. So memory is
    bounded by what is in flight, or was lost, and not by what was asked; a sender that leaves out
    numbers on purpose costs no more than the requests that it sends.
    """

    #: Ranges of missing numbers that are remembered. More than these cannot be on their way at
    #: once; a request below them that arrives after all is not run.
    MOST_GAPS = 2**14

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._highest: float = -1
        self._gaps: list[tuple[int, int]] = []  # first and last of each range, ascending
        self._answers: dict[int, Future[Frames]] = {}

    @property
    def answers(self) -> int:
        """How many replies are kept."""
        return len(self._answers)

    def take(self, number: int, idempotent: int = 0) -> bool:
        """Return whether the request *number* is to be run: it has not arrived before.

        The reply to an idempotent one is to be handed to :meth:`keep`.
        """
        with self._lock:
            if number == self._highest + 1:
                self._highest = number
            elif number > self._highest:
                self._skip_to(number)
            elif not self._fill(number):
                return False
            if idempotent:
                self._answers[number] = Future()
            return True

    def keep(self, number: int, answer: Frames | Future[Frames]) -> None:
        """Remember the answer to a request, or what it will be."""
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: self._put(number, done.result()))
        else:
            self._put(number, answer)

    def answer(self, number: int) -> Future[Frames]:
        """Return the answer to a request that has arrived before.

        A future that is never done stands for one that is not kept: it was given when the request
        came first, and must not be overtaken by anything else.
        """
        with self._lock:
            return self._answers.get(number) or Future()

    def release(self, numbers: Iterable[int]) -> None:
        """Forget the answers to requests that the sender no longer waits for.

        Those that have not arrived are not run any more.
        """
        with self._lock:
            for number in numbers:
                if number > self._highest:
                    self._skip_to(number)
                self._fill(number)
                self._answers.pop(number, None)

    def end(self) -> None:
        """Forget everything, and take nothing more: the sender has ended."""
        with self._lock:
            self._highest = float("inf")
            self._gaps.clear()
            self._answers.clear()

    def _skip_to(self, number: int) -> None:
        self._gaps.append((int(self._highest) + 1, number - 1))
        self._highest = number
        if len(self._gaps) > self.MOST_GAPS:
            del self._gaps[: self.MOST_GAPS // 2]

    def _fill(self, number: int) -> bool:
        """Take *number* out of its gap; return whether it was missing."""
        at = bisect_right(self._gaps, number, key=_first) - 1
        if at < 0 or self._gaps[at][1] < number:
            return False
        first, last = self._gaps[at]
        rest = [(first, number - 1), (number + 1, last)]
        self._gaps[at : at + 1] = [each for each in rest if each[0] <= each[1]]
        return True

    def _put(self, number: int, frames: Frames) -> None:
        with self._lock:
            answer = self._answers.get(number)
        if answer is not None:
            settle(answer, _copies(frames))


_first = itemgetter(0)


def _copies(frames: Sequence[Buffer]) -> Frames:
    """Return *frames* as they are now: a result may lie in memory that goes on changing."""
    return [frame if type(frame) is bytes else _copy(memoryview(frame)) for frame in frames]


def _copy(frame: memoryview) -> Buffer:
    return bytes(frame) if frame.readonly else bytearray(frame)
