"""The future of a call to another member, and the functions of users that are called then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from typing_extensions import Buffer, override

from pparallel.errors import CallTimeoutError, PparallelError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.future import CANCELLED, FINISHED, TorchFuture, Watcher, log_unasked
from pparallel.runtime.rpc import context
from pparallel.runtime.rpc.codec import (
    NOT_REGISTERED,
    OK,
    STATUS,
    SUCCESS,
    VALUE,
    Data,
    Item,
    Registered,
)
from pparallel.runtime.rpc.directory import FIND
from pparallel.runtime.rpc.service import Reply
from pparallel.runtime.timeouts import deadline_of, left

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ReplyFuture(TorchFuture[T], Generic[T]):
    """What a member replies; it is read by the first thread that asks for it.

    Its result in the base class is the reply until it is read, and the value or error from then on.
    Callbacks are the runtime's own, and are called where the reply arrives.
    """

    def __init__(self, endpoint: Endpoint, to: str) -> None:
        super().__init__()
        self._endpoint, self._to = endpoint, to
        self._is_decoded = False

    def answer(self, item: Item, frames: Frames) -> None:
        """Take the result in, as a peer's request does."""
        self._end(FINISHED, (item, frames))  # type: ignore[arg-type] # until it is asked for

    def fail(self, error: BaseException) -> None:
        """Take an error in, as a peer's request does."""
        self._end(FINISHED, None, self._endpoint.root_cause(error))

    @override
    def cancel(self) -> bool:
        """Return False: what was sent cannot be taken back."""
        return False

    @override
    def result(self, timeout: float | None = None) -> T:
        if not self._is_decoded:
            self.exception(timeout)
        return super().result(timeout)

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            with self._endpoint.waiting(self._to):
                try:
                    super().exception(timeout)
                except TimeoutError as late:
                    if late.args:
                        raise  # of a signal's handler
                    raise CallTimeoutError(f"a request to {self._to!r}", timeout or 0.0) from None
        if self._state == FINISHED and not self._is_decoded:
            self._decode()
        return super().exception()

    def _read(self, reply: Any) -> Any:
        return self._endpoint.read_service(self._to, *reply)

    def _decode(self) -> None:
        # Made here, for most have nothing to decode; of several threads one sets it.
        with vars(self).setdefault("_decoding", threading.RLock()):
            if self._is_decoded or self._exception is not None:
                return
            value: Any = None
            try:
                value = self._read(self._result)
            except Exception as error:  # noqa: BLE001 - handed to whoever asks
                self._exception = error
            self._result, self._is_decoded = value, True


class RpcFuture(ReplyFuture[T], Generic[T]):
    """The result of a call, once it comes; also a :class:`concurrent.futures.Future`.

    The reply is deserialised by the first thread that asks for the result, not by the one that
    received it.
    """

    _number = 0  # its id there
    keeps: object = None  #: what is to live as long as the future, such as a reference

    def _refuse(self, *_: object) -> NoReturn:
        """Refuse what ends the futures of others.

        Raises:
            RuntimeError: always.
        """
        message = (
            "the future of a call is ended by its reply, or by cancel(): for a future that you end"
            " yourself, make a concurrent.futures.Future()"
        )
        raise RuntimeError(message)

    set_result = set_exception = set_running_or_notify_cancel = _refuse  # type: ignore[assignment]

    @property
    @override
    def _watcher(self) -> Watcher:  # type: ignore[override,mutable-override]
        return self._endpoint.refs

    @override
    def answer(self, item: Item, frames: Frames) -> None:
        if item[STATUS] == OK:
            self._is_decoded = True  # first: whoever waits looks at once
            self._end(FINISHED, item[VALUE])
        elif item[STATUS] in SUCCESS:
            super().answer(item, frames)
        else:
            self._has_failed = True  # first, as above
            log = partial(_log_reply, self._endpoint, self._to, item, frames)
            self._end_by(log, (item, frames), None)

    @override
    def fail(self, error: BaseException) -> None:
        if self._endpoint.is_ending:  # as everybody knows
            super().fail(error)
            return
        error = self._endpoint.root_cause(error)
        log = partial(log_unasked, f"a call to {self._to!r}", f"{type(error).__name__}: {error}")
        self._end_by(log, None, error)

    @override
    def cancel(self) -> bool:
        """End as cancelled, and have the other member not run the call, if it has not ended.

        A coroutine that runs there is cancelled, and so is the future of a call or of a pool that
        the function has returned. Any other function that runs goes on; its result is dropped.

        Returns:
            Whether it is cancelled; False: it has ended.
        """
        if self._end(CANCELLED):
            number = self._number
            self._endpoint.peer(self._to).cancel(number)
        return self.cancelled()

    def has_result(self) -> bool:
        """Return whether the call has ended, and not by an error of the other member."""
        return self._state == FINISHED and not self._has_failed and self._exception is None

    @override
    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Have *fn* called with this future when it is done, on a thread that runs callbacks.

        If it is done already, *fn* is called at once by the calling thread.
        """
        if not self.done():
            fn = partial(_put, self._endpoint, fn)
        super().add_done_callback(fn)

    @override
    def _read(self, reply: Any) -> Any:
        return self._endpoint.read_call(self._to, *reply)


class RegisteredFuture(RpcFuture[T], Generic[T]):
    """The result of a registered function, whose call follows it to where it has moved."""

    def __init__(
        self,
        endpoint: Endpoint,
        to: str,
        name: Registered,
        call: tuple[int, Data | None, Sequence[Buffer]],
        timeout: float | None,
    ) -> None:
        super().__init__(endpoint, to)
        self._name, self._sent, self._deadline = name, call, deadline_of(timeout)

    @override
    def answer(self, item: Item, frames: Frames) -> None:
        if item[STATUS] != NOT_REGISTERED:
            super().answer(item, frames)
            return
        endpoint, (group, key) = self._endpoint, self._name
        endpoint.owners.pop(self._name, None)

        def found(answer: Future[Reply]) -> None:
            try:
                entry = answer.result().body
                if entry is None:
                    super(RegisteredFuture, self).answer(item, frames)
                elif not self.done():
                    self._number = 0  # that of the call there is not that of the next
                    self._to, peer = entry[0], endpoint.peer(entry[0])
                    self._number = peer.call_async(self, *self._sent, left(self._deadline))
                    if self.cancelled():  # meanwhile
                        peer.cancel(self._number)
            except Exception as error:  # noqa: BLE001 - goes to whoever waits
                self.fail(error)

        try:
            first = endpoint.member.names[0]
            wanted, remaining = (group, "service", key), left(self._deadline)
            asked = endpoint.ask_async(first, FIND, wanted, timeout=remaining)
            asked.add_done_callback(found)
        except PparallelError as error:
            self.fail(error)


def _log_reply(endpoint: Endpoint, to: str, item: Item, frames: Frames) -> None:
    try:
        endpoint.read_call(to, item, frames)
    except Exception as error:  # noqa: BLE001 - that is logged
        if isinstance(error, CancelledError) and endpoint.is_ending:
            return  # as everybody knows
        text = "".join(format_exception(error.with_traceback(None)))
        log_unasked(f"a call to {to!r}", text)


def _put(endpoint: Endpoint, callback: Callable[[Future[Any]], object], future: Any) -> None:
    endpoint.background.submit(id(future), [partial(_call, endpoint, callback, future)])


def _call(endpoint: Endpoint, callback: Callable[[Future[Any]], object], future: Any) -> None:
    """Call *callback* of a user; whatever it raises, also ``SystemExit``, is logged."""
    try:
        with context.acting_for(endpoint):
            callback(future)
    except BaseException:
        logger.exception("%s: what was called when a call had ended failed", endpoint.name)
