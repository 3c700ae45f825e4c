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
from sys import modules
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from typing_extensions import override

from pparallel.interfaces.transport import Frames
from pparallel.runtime.clock import Clock
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.lean_future import FINISHED, PENDING, LeanFuture
from pparallel.runtime.pending import fail, settle
from pparallel.runtime.rpc import current
from pparallel.runtime.rpc.handlers import Handlers
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
    _is_decoded = False
    _error: BaseException | None = None  # that decoding has raised
    keeps: object = None  #: what is to live as long as the future, such as a reference

    def __init__(
        self, way: Way[T], to: str, ended: Callable[[Future[T]], object] | None = None
    ) -> None:
        """Wait for a reply of member *to*; *ended* is the first of the callbacks."""
        # Without what the base class does: to call it would cost as much again.
        self._way, self._to = way, to
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
            callbacks.clock.start()  # by which *fn* is called, too, should no thread start then
            callbacks.count_loop()  # that it was added may be all that asyncio does
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
                self._wait(left)
        if self._exception is not None:
            return self._exception
        self._decode()
        return self._error

    @override
    def _new_waiters(self) -> list[Any]:
        callbacks = self._way.callbacks
        return [] if callbacks is None else Waiters(callbacks.handlers)

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
            failed: BaseException | None = None
            try:
                value = self._way.decode(self._to, reply)
            except Exception as error:  # noqa: BLE001 - handed to whoever asks
                raise_interrupt(error)
                failed = error
            if not self._is_decoded:  # else by a signal's handler meanwhile, in this thread
                self._error, self._result, self._is_decoded = failed, value, True


def give_all(futures: dict[int, RpcFuture[Any]], results: Iterable[tuple[int, object]]) -> None:
    """End futures with values that came as they are; take those out that have ended."""
    for index, value in results:
        future = futures.get(index)
        if future is None:  # it has been taken out before
            continue
        if future._state == PENDING:
            future._is_decoded = True  # first: whoever waits looks at once
            # As set_result(), which costs as much as all the rest; no call is in between.
            if future._is_bare:
                future._result, future._state = value, FINISHED
                if future._done_callbacks:
                    future._invoke_callbacks()
            else:
                settle(future, value)
        del futures[index]


class Callbacks:
    """Calls users' callbacks on threads of their own, for those that receive must not be kept.

    Nor do handler threads run them: a function may keep the last of those until its callback runs.

    Attributes:
        clock: by whose thread it is tried again where none can be started.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self._endpoint, self.handlers, self.clock = endpoint, endpoint.handlers, clock
        self._threads = Handlers(MOST, f"{endpoint.name}-callbacks")
        self._threads.clock = clock
        self._due: deque[tuple[Callback, Future[Any]]] = deque()

    def put(self, callback: Callback, future: Future[Any]) -> None:
        """Have *callback* called with *future*, after those put before it."""
        self._due.append((callback, future))
        self._threads.submit(id(future), self._run_next)

    def count_loop(self) -> None:
        """Have a handler thread count as waiting whenever its event loop, if it runs one, does."""
        if not self.handlers.is_running_here() or (asyncio := modules.get("asyncio")) is None:
            return
        selector = getattr(asyncio._get_running_loop(), "_selector", None)
        if selector is None or "select" in vars(selector):
            return
        select = selector.select

        def select_waiting(timeout: float | None = None) -> Any:
            if timeout is not None and timeout <= 0:
                return select(timeout)
            with self.handlers.waiting():
                return select(timeout)

        selector.select = select_waiting

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


class Waiters(list[Any]):
    """What :mod:`concurrent.futures` puts beside a future in ``wait`` and ``as_completed``.

    A handler thread that waits so does not count as running, as in ``result``.
    """

    def __init__(self, handlers: Handlers) -> None:
        super().__init__()
        self._handlers = handlers

    @override
    def append(self, waiter: Any) -> None:
        # Each future's condition is held, so that nobody has set the event yet.
        event = waiter.event
        if self._handlers.is_running_here() and "wait" not in vars(event):
            wait = event.wait

            def wait_counted(timeout: float | None = None) -> Any:
                if event.is_set():
                    return True
                with self._handlers.waiting():
                    return wait(timeout)

            event.wait = wait_counted
        super().append(waiter)
