"""The books of gradients on their way."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple


class UnknownTicketError(ValueError):
    """A gradient arrives with a ticket that is not on its way."""


class Ticket(NamedTuple):
    """The right to push one gradient.

    Attributes:
        serial: which it is; of one run no two are the same, and later ones are larger.
        version: the oldest version that the gradient may be computed on.
    """

    serial: int
    version: int


@dataclass(eq=False, slots=True)
class Issued:
    """What is known of a ticket.

    Attributes:
        serial: which it is.
        member: who computes the gradient.
        via: the secondary that it goes to; None: it has arrived.
        version: the oldest version that it may be computed on.
    """

    serial: int
    member: str
    via: str | None
    version: int


class Tickets:
    """All tickets that are out."""

    def __init__(self) -> None:
        self._last = 0
        self._out: dict[int, Issued] = {}
        self._dropped = False

    def issue(self, member: str, via: str, version: int, *, void: bool) -> Ticket:
        """Return a new ticket; one that is *void* is in no book, and nothing waits for it."""
        self._last += 1
        if not void:
            self._out[self._last] = Issued(self._last, member, via, version)
        return Ticket(self._last, version)

    def arrived(self, serials: Iterable[int]) -> None:
        """Note that the gradients of these tickets have arrived.

        Raises:
            UnknownTicketError: there is no such ticket on its way; nothing was noted.
        """
        serials = list(serials)
        found = {each: self._out[each] for each in serials if each in self._out}
        if len(found) < len(serials) or any(each.via is None for each in found.values()):
            message = f"gradients with the tickets {serials} arrived: not all are on their way"
            raise UnknownTicketError(message)
        for each in found.values():
            each.via = None

    def used(self, serials: Iterable[int]) -> None:
        """Forget tickets of gradients that are reduced."""
        for each in serials:
            self._out.pop(each, None)

    def drop(self, which: Callable[[Issued], bool]) -> None:
        """Forget tickets whose gradients will not come."""
        for each in list(self._out.values()):
            if each.via is not None and which(each):
                del self._out[each.serial]
                self._dropped = True

    def dropped(self) -> bool:
        """Return whether some were dropped since this was asked last."""
        dropped, self._dropped = self._dropped, False
        return dropped

    def before(self, version: int, beside: Container[int]) -> list[Issued]:
        """Return those of an older version than *version*, *beside* some that do not matter."""
        return [
            each
            for each in self._out.values()
            if each.version < version and each.serial not in beside
        ]

    def members(self, serials: Iterable[int]) -> set[str]:
        """Return whose gradients have these tickets."""
        return {self._out[each].member for each in serials if each in self._out}

    def has(self, member: str) -> bool:
        """Return whether *member* has some."""
        return any(each.member == member for each in self._out.values())

    def holders(self, member: str) -> list[str]:
        """Return the secondaries that gradients of *member* go to which have not arrived."""
        return sorted(
            {each.via for each in self._out.values() if each.member == member and each.via}
        )
