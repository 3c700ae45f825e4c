"""The faults that each message suffers."""

from __future__ import annotations

import random
import threading
from typing import Literal, NamedTuple

from pparallel.testing.chaos.config import ChaosTransportConfig

End = Literal["answered", "request lost", "reply lost", "broken"]


class Fate(NamedTuple):
    """The fault of one message.

    Attributes:
        end: how it ends.
        delay: seconds that it is late.
        again: seconds after which it arrives once more; ``None``: it does not.
    """

    end: End = "answered"
    delay: float = 0.0
    again: float | None = None


FINE = Fate()


class Fates:
    """Draws the fate of one message after another; any thread may ask."""

    def __init__(self, config: ChaosTransportConfig, member: str) -> None:
        self._config = config
        self._random = random.Random(f"{config.seed}/{member}")
        self._lock = threading.Lock()

    def draw(self) -> Fate:
        """Return the fate of the next message."""
        config = self._config
        with self._lock:  # always as many numbers, so that one chance does not move the others
            end, twice, late, first, second = (self._random.random() for _ in range(5))
        return Fate(
            self._end(end),
            first * config.delay_at_most if late < config.delay else 0.0,
            second * config.delay_at_most if twice < config.duplicate else None,
        )

    def _end(self, drawn: float) -> End:
        config = self._config
        chances: list[tuple[End, float]] = [
            ("request lost", config.drop_request),
            ("reply lost", config.drop_reply),
            ("broken", config.fail_running),
        ]
        for end, chance in chances:
            if drawn < chance:
                return end
            drawn -= chance
        return "answered"
