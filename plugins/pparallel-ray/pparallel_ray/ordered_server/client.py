"""What is asked of a keeper, and what becomes of its answers."""

from __future__ import annotations

import itertools
import pickle
import secrets
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from pparallel.errors import ClosedError, PeerLostError, SerializationError
from pparallel.runtime import stopping
from pparallel_ray.ordered_server.keeper import Answer

_ENDING = 5.0  #: seconds that calls which are under way have to end when the server is closed


class KeeperClient:
    """Asks a keeper, in any thread.

    Args:
        actor: the keeper.
        what: what it is called in errors.
    """

    def __init__(self, actor: Any, what: str) -> None:
        self._actor, self._what = actor, what
        self._owner = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._underway = 0
        self._is_closed = False

    def push(
        self,
        key: Hashable,
        version: Hashable,
        prev_version: Hashable | None,
        buffers: Sequence[Any],
    ) -> bool:
        """Store what a serializer has made, which may be changed afterwards."""
        sent = [pickle.PickleBuffer(each) for each in buffers]
        return bool(self.ask("push", key, version, prev_version, sent))

    def pull(self, method: str, *asked: Any) -> tuple[list[Any], Any] | None:
        """Return buffers, which are not to be written to, and their version."""
        return self._opened(self.ask(method, *asked))

    def wait(
        self, key: Hashable, version: Hashable | None, timeout: float | None
    ) -> tuple[list[Any], Any] | None:
        """Return the newest as soon as it is not *version*; ``None``: *timeout* has passed.

        Raises:
            ClosedError: this is closed meanwhile, or the job ends.
        """
        ticket = (self._owner, next(self._numbers))
        try:
            with stopping.telling(lambda: self._tell("withdraw", ticket)):
                answer = self.ask("wait", key, version, timeout, ticket)
        except KeyboardInterrupt:
            self._tell("withdraw", ticket)
            raise
        if answer is False:
            if self._is_closed:
                raise ClosedError("the ordered server")
            raise ClosedError("the ordered server", "is closing: the job ends", consequence=True)
        return self._opened(answer)

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
            return ray.get(reference)

    def close(self, *, ends_keeper: bool) -> None:
        """Wake those who wait through this, and end the keeper if it is this member's."""
        with self._changed:
            self._is_closed = True
        self._tell("dismiss", self._owner)
        deadline = monotonic() + _ENDING
        with self._changed:
            self._changed.wait_for(lambda: not self._underway, max(0.0, deadline - monotonic()))
        if ends_keeper and ray.is_initialized():
            ray.kill(self._actor)

    @staticmethod
    def _opened(answer: Answer | None) -> tuple[list[Any], Any] | None:
        if answer is None:
            return None
        version, buffers = answer
        return buffers, version

    def _tell(self, method: str, *asked: Any) -> None:
        """Ask without waiting: whether the keeper hears it makes no difference to the caller."""
        if ray.is_initialized():
            with suppress(RayError):
                getattr(self._actor, method).remote(*asked)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._changed:
            if self._is_closed:
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
