"""The future of a call to another member, and the functions of users that are called then."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from typing_extensions import override

from pparallel.interfaces.transport import Frames
from pparallel.runtime.future import FINISHED, PENDING, LeanFuture, fail, settle
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.rpc import current
from pparallel.runtime.rpc.handlers import Handlers
from pparallel.runtime.timers import Timers
from pparallel.runtime.user_code import run

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint

logger = logging.getLogger(__name__)

MOST = 64  #: callbacks that run at once, at the most

Callback = Callable[[Future[Any]], object]

T = TypeVar("T")


class Way(NamedTuple, Generic[T]):
    """How a future gets what it is asked for, once for all of a kind.

    Attributes:
        decode: called with the member that was asked, and the reply.
        waiting: entered while a thread waits; called with the member, what tells whether the
            future is done, and how many seconds it waits.
        explain: returns what is to be raised for an error.
        callbacks: calls the functions of users; ``None``: whatever is to be called when a future
            is done is the system's, and is called where the reply arrives.
    """

    decode: Callable[[str, Frames], T]
    waiting: Callable[[str, Callable[[], bool], float | None], AbstractContextManager[object]]
    explain: Callable[[BaseException], BaseException]
    callbacks: Callbacks | None = None


def _put_once(
    callbacks: Callbacks, left: list[Callable[[Future[Any]], object]], future: Future[Any]
) -> None:
    """Have what is *left* called; what follows an interrupt finds nothing more."""
    while left:
        callbacks.put(left.pop(), future)


class RpcFuture(LeanFuture[T], Generic[T]):
    """The result of a call, once it comes; also a :class:`concurrent.futures.Future`.

    The reply is deserialised by the first thread that asks for the result, not by the one that
    received it.
    """

    # The result of the base class is a reply until it is decoded, and the value from then on.
    _error: BaseException | None = None  # that decoding has raised
    keeps: object = None  #: what is to live as long as the future, such as a reference

    def __init__(
        self, way: Way[T], to: str, ended: Callable[[Future[T]], object] | None = None
    ) -> None:
        """Wait for a reply of member *to*; *ended* is the first of the callbacks."""
        super().__init__()
        self._way, self._to = way, to
        self._is_decoded = False
        if ended is not None:
            self._done_callbacks = [ended]

    @override
    def set_exception(self, exception: BaseException | None) -> None:
        super().set_exception(None if exception is None else self._way.explain(exception))

    @override
    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Have *fn* called with this future when it is done, on a thread that runs callbacks.

        If it is done already, *fn* is called at once by the calling thread.

        Raises:
            ResourceExhaustedError: no thread can be started; *fn* is not added.
        """
        callbacks = self._way.callbacks
        if callbacks is not None and not self.done():
            callbacks.timers.start()  # by which *fn* is called, too, should no thread start then
            fn = partial(_put_once, callbacks, [fn])
        super().add_done_callback(fn)

    @override
    def cancel(self) -> bool:
        """Return False: what was sent cannot be taken back."""
        return False

    @override
    def result(self, timeout: float | None = None) -> T:
        if self._state == FINISHED and self._exception is None:
            if not self._is_decoded:
                self._decode()
            error = self._error
        else:
            error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # no cycle of exception, traceback and this frame
        return self._result  # type: ignore[return-value] # None is a T if it is the result

    wait = result  #: as torch's futures name it

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state != FINISHED:
            began = time.monotonic()
            with self._way.waiting(self._to, self.done, timeout):  # it may wait itself
                left = None if timeout is None else timeout - (time.monotonic() - began)
                error = super().exception(left)
        else:
            error = self._exception
        if error is None:
            self._decode()
            error = self._error
        return error

    def follow(self, reply: Future[Frames]) -> None:
        """End as *reply* does."""
        if error := reply.exception():
            fail(self, error)
        else:
            settle(cast("Future[Any]", self), reply.result())  # a reply until it is asked for

    def _decode(self) -> None:
        # Made here, for most have nothing to decode; of several threads one sets it.
        with vars(self).setdefault("_decoding", threading.RLock()):
            if self._is_decoded:
                return
            reply: Any = self._result
            value: Any = None
            try:
                value = self._way.decode(self._to, reply)
            except Exception as error:  # noqa: BLE001 - handed to whoever asks
                raise_interrupt(error)
                self._error = error
            self._result, self._is_decoded = value, True


def give_all(futures: dict[int, RpcFuture[Any]], results: Iterable[tuple[int, object]]) -> None:
    """End futures with values that came as they are; take those out that have ended."""
    for index, value in results:
        future = futures.get(index)
        if future is None:  # it has been taken out before
            continue
        if future._state == PENDING:
            future._is_decoded = True  # first: whoever waits looks at once
            future._end(FINISHED, value)
        del futures[index]


class Callbacks:
    """Calls users' callbacks on threads of their own, for those that receive must not be kept.

    Nor do handler threads run them: a function may keep the last of those until its callback runs.

    Attributes:
        timers: by which it is tried again where no thread can be started.
    """

    def __init__(self, endpoint: Endpoint, timers: Timers) -> None:
        self._endpoint, self.handlers, self.timers = endpoint, endpoint.handlers, timers
        self._threads = Handlers(MOST, f"{endpoint.name}-callbacks")
        self._threads.timers = timers
        self._due: deque[tuple[Callback, Future[Any]]] = deque()

    def put(self, callback: Callback, future: Future[Any]) -> None:
        """Have *callback* called with *future*, after those put before it."""
        self._due.append((callback, future))
        self._threads.submit(id(future), self._run_next)

    def close(self) -> None:
        """Have no thread wait for callbacks any more; safe to call again."""
        self._threads.close(runs_rest=True)

    def join(self, timeout: float) -> None:
        """Wait until what is called has ended; call here what no thread could be started for."""
        if self._threads.join(timeout):
            while self._due:
                self._run_next()

    def _run_next(self) -> None:
        try:
            callback, future = self._due.popleft()
        except IndexError:  # another thread has called it
            return
        try:
            with current.acting_for(self._endpoint):
                run(callback, (future,))
        except BaseException:  # also SystemExit: it would end a thread that has other work
            logger.exception(
                "%s: what was called when a call had ended failed", self._endpoint.name
            )
