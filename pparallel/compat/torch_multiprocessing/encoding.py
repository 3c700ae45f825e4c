"""What cannot be sent: the error that handlers written for ``multiprocessing.Pool`` catch."""

from __future__ import annotations

from multiprocessing import pool
from typing import Any

from pparallel.errors import SerializationError

_original: Any = pool  # the type stubs do not know its error


class MaybeEncodingError(SerializationError, _original.MaybeEncodingError):  # type: ignore[misc]
    """Raised by a pool for a function, an argument or a result that cannot be sent.

    Attributes:
        value: what it is.
        exc: why it cannot be sent.
    """

    __str__ = Exception.__str__

    def __init__(self, error: SerializationError) -> None:
        Exception.__init__(self, str(error))
        self.value, _, reason = str(error).partition(" cannot be ")
        self.exc = reason.partition(": ")[2]


def translated(error: BaseException) -> BaseException:
    """Return what a pool raises for *error*."""
    return MaybeEncodingError(error) if isinstance(error, SerializationError) else error
