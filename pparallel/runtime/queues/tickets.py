"""Tickets: what travels through a queue's pipe, one for each message.

All are of one size, and a pipe takes and gives so few bytes in one piece: no writer's ticket is
mixed with another's, and no reader gets a part of one. So there is no lock that a process could
die with.
"""

from __future__ import annotations

SIZE = 128  #: bytes; a page of a pipe holds a whole number of them
LONGEST = SIZE - 1  #: bytes of the head of a parcel in one


def ticket(head: bytes) -> bytes:
    """Return the ticket that brings *head*."""
    return (bytes((len(head),)) + head).ljust(SIZE, b"\0")


def head_of(ticket: bytes) -> bytes:
    """Return what a ticket brings."""
    return ticket[1 : ticket[0] + 1]
