"""The one place where a member calls and is called."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress

from pparallel.errors import ClosedError, PeerLostError, PparallelError
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Transport, TransportConfig
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import current
from pparallel.runtime.rpc.called import Called
from pparallel.runtime.rpc.caller import RELEASE, Caller
from pparallel.runtime.rpc.directory import Directory
from pparallel.runtime.rpc.handlers import Handlers
from pparallel.runtime.rpc.refs import RefTable
from pparallel.runtime.rpc.service import Reply, Request

logger = logging.getLogger(__name__)

FAILING = "job.failing"
END = "job.end"
GRACE = 1.0  #: seconds that telling the others of a failure may take


class Endpoint(Caller, Called):
    """Calls and is called: functions on a pool of threads, services where they arrive.

    Everything above the transport that is the same for all transports meets here.
    """

    def __init__(
        self, transport: Transport, serializer: Serializer, member: Member, config: TransportConfig
    ) -> None:
        handlers = Handlers(config.handler_threads, member.name)
        Caller.__init__(self, transport, serializer, member, config, handlers)
        Called.__init__(self)
        self._changed = threading.Condition()
        self._leaving = False
        self._when_lost: list[Callable[[str, str], None]] = []
        self._when_ended: list[Callable[[BaseException], None]] = []
        self._lost: dict[str, str] = {}
        self.refs = RefTable(self)
        self._directory = Directory(self) if member.rank == 0 else None
        self.serve(FAILING, self._other_is_failing)
        self.serve(END, self._other_failed)
        self.serve(RELEASE, self._forget_answers)

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Meet the other members."""
        self._transport.when_lost(self._peer_lost)
        try:
            self._transport.open(self._handle)
        except ClosedError as error:
            raise self._why(error) from None
        current.opened(self)

    def leave(self) -> None:
        """Say that the ends of other members are expected from now on."""
        self._leaving = True
        self.batches.flush_all()

    def let_others_leave(self) -> None:
        """In the first member, wait a moment for the others to leave: it may owe them an answer.

        The last that they asked was whether all are done, and they leave as soon as they know.
        """
        if self.member.rank == 0:
            others = set(self.member.names[1:])
            with self._changed:
                self._changed.wait_for(
                    lambda: self._ended is not None or others <= self._lost.keys(), GRACE
                )

    def close(self) -> None:
        """Disconnect and end the threads; safe to call again."""
        self.end(ClosedError("the runtime"))
        self._transport.close()  # a thread of its own may have begun to, and not be done with it
        current.closed(self)
        self.refs.close()
        self.callbacks.join(GRACE)
        if not self.handlers.join(GRACE):
            logger.warning("%s: a function called by another member is still running", self.name)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this member failed with *error*, without waiting long."""
        # First all learn of it, then all end: whoever saw others leave before it knew why would
        # take them for lost.
        body = (self.name, f"{type(error).__name__}: {error}")
        self._tell_all(FAILING, body)
        self._tell_all(END, body)

    def _tell_all(self, key: str, body: object) -> None:
        # The first member last: with it goes the directory, and that would be the louder news.
        told = []
        for name in reversed(self.member.names):
            if name != self.name and name not in self._lost:
                with suppress(PparallelError):  # one that has ended meanwhile need not be told
                    told.append(self.ask_async(name, key, body))
        wait(told, GRACE / 2)

    def end(self, reason: BaseException) -> None:
        """Fail whatever waits, and all that is asked later, with *reason*; the first one counts."""
        with self._changed:
            if self._ended is not None:
                return
            self._ended = reason
            self._changed.notify_all()
        self._requests.close(self._why)
        self._window.close()
        self.batches.refuse()
        self.handlers.close()
        self._transport.close()
        self.batches.close()
        self.timers.close()
        self.callbacks.close()
        for callback in list(self._when_ended):
            _tell(callback, reason)

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._ended is not None

    def when_ended(self, callback: Callable[[BaseException], None]) -> None:
        """Have *callback* called at the end with its reason; at once if it has come."""
        with self._changed:
            if self._ended is None:
                self._when_ended.append(callback)
                return
        callback(self._ended)

    def when_lost(self, callback: Callable[[str, str], None]) -> None:
        """Have *callback* called with the name and the end of each member that ends."""
        with self._changed:
            self._when_lost.append(callback)
            lost = list(self._lost.items())
        for name, reason in lost:
            callback(name, reason)

    def forget(self, callback: Callable[..., None]) -> None:
        """Call *callback* no more."""
        with self._changed:
            self._when_lost = [each for each in self._when_lost if each != callback]
            self._when_ended = [each for each in self._when_ended if each != callback]

    # -- ends ---------------------------------------------------------------------------------

    def _other_is_failing(self, request: Request) -> Reply:
        name, message = request.body
        why = f"is ending because member {name!r} failed: {message}"
        self._failing = ClosedError("the job", why, consequence=True)
        return Reply()

    def _other_failed(self, request: Request) -> Reply:
        if self._failing is None:  # it could not be told before
            self._other_is_failing(request)
        assert self._failing is not None
        self.end(self._failing)
        return Reply()

    def _peer_lost(self, name: str, reason: str) -> None:
        with self._changed:
            self._lost[name] = reason
            self._changed.notify_all()
            callbacks = list(self._when_lost)
            self.owners = {key: owner for key, owner in self.owners.items() if owner != name}
        if self._directory is not None:
            self._directory.lose(name, reason)
        self.refs.lose(name)
        self.forget_sender(name)
        for callback in callbacks:
            _tell(callback, name, reason)
        if self._failing is not None:
            self.end(self._failing)
        elif name == self.member.names[0] and not self._leaving:
            self.end(PeerLostError(name, f"{reason}, and the job ends with its first member"))


def _tell(callback: Callable[..., None], *news: object) -> None:
    """Call *callback*; whatever it raises, the others are to be called too."""
    try:
        callback(*news)
    except Exception:
        logger.exception("What was to be called when a member has ended failed")
