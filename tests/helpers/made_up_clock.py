"""A clock of bounded staleness alone, and what it asks for."""

from __future__ import annotations

from pparallel_reducers.grad_server.clock import Clock
from pparallel_reducers.grad_server.tickets import Ticket


class Told:
    """What a clock asked for."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> None:
        self.looks += 1


def started(bound: int, version: int = 0) -> tuple[Clock, Told]:
    told = Told()
    return Clock(bound, version, told.look), told


def entered(clock: Clock, member: str, via: str = "ps", back: Ticket | None = None) -> Ticket:
    return clock.enter(member, via, back.serial if back else None).result(timeout=0)


def stepped(clock: Clock, version: int, *batch: Ticket) -> bool:
    """Try a step to *version* on gradients that have come."""
    serials = [each.serial for each in batch]
    if not clock.may_step(serials, True):
        return False
    clock.published(version)
    return True
