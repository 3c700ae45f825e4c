"""How fast something is counted up."""

from __future__ import annotations

from collections import deque

WINDOW = 5.0  #: seconds of which a rate is the mean
GRAIN = 0.1  #: seconds between two marks, so that there are few


class Meter:
    """A count, and its rate now and on the whole.

    Attributes:
        steps: the count; ``None`` while nothing was counted.
    """

    def __init__(self) -> None:
        self.steps: float | None = None
        self._first = (0.0, 0.0)
        self._marks: deque[tuple[float, float]] = deque()

    def add(self, time: float) -> None:
        """Count one more, at *time*."""
        self.count(time, (self.steps or 0) + 1)

    def count(self, time: float, steps: float) -> None:
        """Say that the count was *steps* at *time*; a lower one than before begins anew."""
        if self.steps is None or steps < self.steps:
            self._first = (time, steps)
            self._marks.clear()
        self.steps = steps
        if len(self._marks) > 1 and time - self._marks[-2][0] < GRAIN:
            self._marks.pop()
        self._marks.append((time, steps))
        while len(self._marks) > 2 and self._marks[1][0] < time - WINDOW:
            self._marks.popleft()

    def rate(self, now: float) -> float | None:
        """Return the steps in a second lately, ``None`` if that cannot be told yet.

        Who counts now and then is not taken to stand still in between: a silence lowers the rate
        once it is twice as long as usual.
        """
        if len(self._marks) < 2:
            return None
        (began, low), (last, high) = self._marks[0], self._marks[-1]
        usual = (last - began) / (len(self._marks) - 1)
        return _quotient(high - low, (now if now - last > 2 * usual + GRAIN else last) - began)

    def mean(self) -> float | None:
        """Return the steps in a second from the first that was counted to the last."""
        if self.steps is None:
            return None
        (began, low), (last, high) = self._first, self._marks[-1]
        return _quotient(high - low, last - began)


def _quotient(steps: float, seconds: float) -> float | None:
    return steps / seconds if seconds > 0 else None
