"""Asking a keeper, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from pparallel.errors import ClosedError, PeerLostError, SerializationError

_ENDING = 5.0  #: seconds that calls which are under way have to end when the server is closed


class Asking:
    """Asks a keeper, in any thread.

    Args:
        actor: the keeper.
        what: it is called in errors.
        owner: for whom the keeper waits.

    Attributes:
        is_closed: nothing may be asked any more.
    """

    def __init__(self, actor: Any, what: str, owner: str) -> None:
        self._actor, self._what, self._owner = actor, what, owner
        self._changed = threading.Condition()
        self._underway = 0
        self.is_closed = False

    def ask(self, method: str, *asked: Any) -> Any:
        """Return what the keeper answers.

        Raises:
            PeerLostError: it has ended.
            SerializationError: a key or a version cannot be read there, or be sent.
            ClosedError: this is closed.
        """
        with self._counted(), self._explained():
            try:
                reference = getattr(self._actor, method).remote(*asked)
            except TypeError as error:  # Ray's for what cannot be pickled
                raise SerializationError("a key or version", error) from error
            if self.is_closed:  # by another thread; the keeper may have heard so before this
                self.tell("dismiss", self._owner)
            return ray.get(reference)

    def close(self) -> None:
        """Have nothing asked any more; who waits is told so."""
        with self._changed:
            self.is_closed = True
        self.tell("dismiss", self._owner)

    def wait_for_the_rest(self) -> None:
        """Wait until what is under way has been answered, for a while."""
        with self._changed:
            self._changed.wait_for(lambda: not self._underway, _ENDING)

    def tell(self, method: str, *asked: Any) -> None:
        """Ask without waiting: whether the keeper hears it makes no difference to the caller."""
        if ray.is_initialized():
            with suppress(RayError):
                getattr(self._actor, method).remote(*asked)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._changed:
            if self.is_closed:
                raise ClosedError("the ordered server")
            self._underway += 1
        try:
            yield
        finally:
            with self._changed:
                self._underway -= 1
                self._changed.notify_all()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RayTaskError as error:
            raise SerializationError("a key or version", error.cause, loading=True) from error
        except RayActorError as error:
            raise PeerLostError(self._what, f"has ended: {_words(error)}") from error
        except RayError as error:
            raise PeerLostError(self._what, f"cannot be reached: {_words(error)}") from error


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
