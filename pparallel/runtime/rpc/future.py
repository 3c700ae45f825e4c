"""The future of a call to another member."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, cast

from typing_extensions import override

from pparallel.interfaces.transport import Frames
from pparallel.runtime.lean_future import FINISHED, LeanFuture
from pparallel.runtime.pending import fail, settle

T = TypeVar("T")

Waiting = Callable[[str, Callable[[], bool], "float | None"], AbstractContextManager[object]]


class RpcFuture(LeanFuture[T], Generic[T]):
    """The result of a call, once it comes; also a :class:`concurrent.futures.Future`.

    The reply is deserialised by the first thread that asks for the result, not by the one that
    received it.
    """

    _value: Any = None
    _error: BaseException | None = None

    def __init__(
        self,
        decode: Callable[[str, Frames], T],
        to: str,
        waiting: Waiting,
        explain: Callable[[BaseException], BaseException],
        ended: Callable[[Future[T]], object] | None = None,
    ) -> None:
        """Wait for a reply.

        Args:
            decode: called with *to* and the reply.
            to: the member that is asked.
            waiting: entered while a thread waits; called with *to*, what tells whether this is
                done, and how many seconds it waits.
            explain: returns what is to be raised for an error.
            ended: the first of the callbacks.
        """
        # Instead of what the base class does: to call it would cost as much again.
        self._waiters = []
        self._done_callbacks = [] if ended is None else [ended]
        self._decode: Callable[[str, Frames], T] | None = decode
        self._to, self._waiting, self._explain = to, waiting, explain

    @override
    def set_exception(self, exception: BaseException | None) -> None:
        super().set_exception(None if exception is None else self._explain(exception))

    @override
    def cancel(self) -> bool:
        """Return False: what was sent cannot be taken back."""
        return False

    @override
    def result(self, timeout: float | None = None) -> T:
        if self._state == FINISHED and self._exception is None:
            if self._decode is not None:
                self._finish()
            error = self._error
        else:
            error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # no cycle of exception, traceback and this frame
        value: T = self._value
        return value

    wait = result  #: as torch's futures name it

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state == FINISHED:
            failed = self._exception
        else:
            with self._waiting(self._to, self.done, timeout):
                failed = super().exception(timeout)
        if failed is not None:
            return failed
        self._finish()
        return self._error

    def give(self, value: T) -> None:
        """End with *value*, which came as it is, unless it has ended meanwhile."""
        self._value, self._decode = value, None
        try:  # as settle() does
            self.set_result(None)  # type: ignore[arg-type] # it is the value that is asked for
        except InvalidStateError:
            return

    def follow(self, reply: Future[Frames]) -> None:
        """End as *reply* does."""
        if error := reply.exception():
            fail(self, error)
        else:
            settle(cast("Future[Any]", self), reply.result())  # frames until asked for

    def _finish(self) -> None:
        # Made here, for most have nothing to decode; of several threads one sets it.
        with vars(self).setdefault("_decoding", threading.Lock()):
            if self._decode is None:
                return
            try:
                self._value = self._decode(self._to, self._result)  # type: ignore[arg-type] # frames
            except BaseException as error:  # noqa: BLE001 - handed to whoever asks
                self._error = error
            self._decode = None
            self._result = None  # the frames
