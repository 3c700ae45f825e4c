"""What follows a job while it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Protocol, Self

from pparallel.runtime.events import Event


class Lines(Protocol):
    """What log lines are written to."""

    def write(self, text: str, /) -> object:
        """Take whole lines."""

    def flush(self) -> object:
        """Pass them on."""


class Watch(ABC):
    """Hears the events of a job inside its ``with``.

    Attributes:
        kinds: classes of the events that it wants to hear.
        log: where log lines go, inside ``with`` and after it.
    """

    kinds: ClassVar[tuple[type[Event], ...]]
    log: Lines

    @abstractmethod
    def hear(self, event: Event) -> None:
        """Take *event*, in the thread where it happened."""

    def start(self) -> None:
        """Begin; nothing to do by default."""
        return

    def stop(self, patience: float | None = None) -> None:
        """Write what is left to write, and leave the terminal as it was; safe to call again.

        Args:
            patience: seconds after which it is left undone, where an interrupt ended the job: what
                its members still say then is not written; ``None``: as long as it takes.
        """
        return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()
