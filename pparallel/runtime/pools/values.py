"""What may stand in messages as it is, and what is said of what cannot be sent or read.

Numbers, strings and the like are written as they are, many at a time. Anything else is serialised
one by one, so that no two tasks share an object that one of them might change, and one that cannot
be sent is one task's failure.
"""

from __future__ import annotations

from pparallel.errors import SerializationError

RANGE, VALUES, PARCELS = range(3)  #: how the items of a lot are written


def head_and_files(entry: bytes | tuple[bytes, int]) -> tuple[bytes, int]:
    """Return the head of a parcel in a lot, and how many of the lot's descriptors are its own."""
    return (entry, 0) if isinstance(entry, bytes) else entry


def unsent(what: str, error: BaseException) -> BaseException:
    """Return why *what* cannot be sent, as the error of the task that it belongs to."""
    if isinstance(error, SerializationError | OSError | MemoryError):
        return error
    refused = SerializationError(what, f"{type(error).__name__}: {error}")
    refused.__cause__ = error
    return refused


def unread(what: str, error: BaseException) -> SerializationError:
    """Return why *what* cannot be read, as the error of the task that it belongs to."""
    if isinstance(error, SerializationError):
        return error
    refused = SerializationError(what, f"{type(error).__name__}: {error}", loading=True)
    refused.__cause__ = error
    return refused
