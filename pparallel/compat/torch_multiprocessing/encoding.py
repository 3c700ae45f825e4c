"""The errors for objects that cannot be sent, which handlers written for the original catch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    own = _of_graph(error)
    return MaybeEncodingError(own) if isinstance(own, SerializationError) else own


@contextmanager
def refusing_graphs() -> Iterator[None]:
    """Raise torch's own error where a tensor in the midst of a graph is refused inside."""
    try:
        yield
    except SerializationError as error:
        if (own := _of_graph(error)) is error:
            raise
        raise own from error


def _of_graph(error: BaseException) -> BaseException:
    why = error.__cause__ if isinstance(error, SerializationError) else None
    is_torchs = type(why) is RuntimeError and "non-leaf tensor" in str(why)
    return RuntimeError(str(why)) if is_torchs else error
