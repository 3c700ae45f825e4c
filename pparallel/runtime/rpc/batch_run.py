"""Calls that came together, on the side where they run.

:mod:`pparallel.runtime.rpc.batches` is the side that calls.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, count, islice, repeat, starmap
from sys import modules
from typing import TYPE_CHECKING, Any

from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.lean_future import LeanFuture
from pparallel.runtime.pending import settle
from pparallel.runtime.plain import PLAIN
from pparallel.runtime.rpc import current, wire
from pparallel.runtime.rpc.batches import LARGE, SMALL
from pparallel.runtime.rpc.wire import Status
from pparallel.runtime.user_code import run

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint
    from pparallel.runtime.rpc.handlers import Job, Stream

LATE = 0.001  #: seconds after which the results that are there do not wait for the others

Key = tuple[str, int, int]  #: sender, its session, and the number of its request

_LONG = frozenset({bytes, str})
_SHORT = PLAIN - _LONG


class BatchRun:
    """Runs calls, each once, and answers with their results.

    Attributes:
        stream: of its jobs, where the thread that received them is to run them.
        over: when the last of them ended.
        expires: when nobody waits for their results any more.
    """

    def __init__(self, endpoint: Endpoint, key: Key, request: Any, limit: float = 0.0) -> None:
        """Know the calls, as :mod:`pparallel.runtime.rpc.batches` writes them.

        Args:
            endpoint: of the member that runs them.
            key: of the request.
            request: the calls.
            limit: seconds within which their results are wanted; 0: no limit.
        """
        self._endpoint, self._key = endpoint, key
        counted, args, kwargs = request
        self._args, self._kwargs = args, kwargs
        self._many = len(args)
        names = chain.from_iterable(starmap(repeat, counted))
        self._names = list(islice(names, self._many + 1))  # the number may be anything
        if not len(self._names) == len(kwargs) == self._many:
            raise SerializationError("a batch of calls", "something is missing", loading=True)
        self.stream: Stream | None = None
        self.over = math.inf
        self._began = began = time.monotonic()
        self.expires = began + limit if limit else math.inf
        self._lock = threading.RLock()
        # A call that ends puts its result here first, then looks whether it is to be told of: no
        # lock is taken for most. Whoever says that results are late looks here afterwards.
        self._values: deque[tuple[int, object]] = deque()  # with which call had it
        self._framed: deque[tuple[int, Frames]] = deque()  # of those that are not small data
        self._ended = count(1)
        self._is_over = not self._many  # no call is left
        self._is_late = False
        self._reply: Future[Frames] | None = None

    def jobs(self) -> list[Job]:
        """Return the calls, to be run in order by whatever threads."""
        each = self._names, self._args, self._kwargs
        return list(map(partial, repeat(self._run), count(), *each))

    def reply(self) -> Frames | Future[Frames]:
        """Return the next reply, or what will be it: the sender waits for one at a time."""
        with self._lock:
            if self._is_ready():
                return self._take()
            self._reply = reply = LeanFuture[Frames]()
        return reply

    def tick(self, now: float) -> None:
        """Tell what is there, if it is time."""
        if now - self._began < LATE:
            return
        endpoint = self._endpoint
        endpoint.ticker.remove(self.tick)
        endpoint.keep_late(self._key, self)  # first: from then on its sender may ask for it
        self._is_late = True
        if self.stream is not None:
            endpoint.handlers.hand_over(self.stream)
        self._tell()

    def _run(
        self, index: int, name: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> None:
        endpoint = self._endpoint
        if self._is_late and time.monotonic() >= self.expires:
            what = f"a call to {endpoint.name!r} that waited there for a thread"
            self.drop(CallTimeoutError(what, self.expires - self._began), index)
            return
        if current.acting.get() is not endpoint:
            current.act_for(endpoint)
        try:
            module = modules.get(name[0])  # as Quick.function(), to call which is felt here
            function = None if module is None else module.__dict__.get(name[1])
            if function is None:
                function = self._function(name)
            value = run(function, args, kwargs)
            kind = type(value)
            if kind in _SHORT or (kind in _LONG and len(value) <= SMALL):
                self._values.append((index, value))
            elif kind in _LONG:
                self._framed.append((index, [wire.QUICK_OK, endpoint.quick.dumps(value)]))
            else:
                reply = wire.join(Status.OK, endpoint.serializer.dumps(value))
                self._framed.append((index, reply))
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            self._framed.append((index, endpoint.failed(error)))
        is_last = next(self._ended) == self._many
        if is_last or self._is_late:
            self._tell(is_last)

    def _function(self, name: Any) -> Callable[..., Any]:
        """Return a function that was not found at once, by its name or number."""
        if type(name[0]) is not int:
            return self._endpoint.quick.function(name)
        sender, session, _ = self._key
        return self._endpoint.functions.function(sender, session, name)[0]

    def drop(self, error: Exception, index: int, *_: object) -> None:
        """Have a call end with *error* instead of running it."""
        self._framed.append((index, self._endpoint.failed(error)))
        is_last = next(self._ended) == self._many
        if is_last or self._is_late:
            self._tell(is_last)

    def _tell(self, is_last: bool = False) -> None:
        """Tell whoever waits of what there is, if it is time."""
        if is_last:
            self._is_over, self.over = True, time.monotonic()
            self._endpoint.ticker.remove(self.tick)
        frames: Frames | None = None
        with self._lock:
            reply = self._reply
            if reply is not None and self._is_ready():
                self._reply, frames = None, self._take()
            self._forget()
        if reply is not None and frames is not None:
            settle(reply, frames)

    def _is_told(self) -> bool:
        return not (self._values or self._framed)

    def _forget(self) -> None:
        """Have nobody ask for more, if there is none; called with the lock held."""
        if self._is_late and self._is_over and self._is_told():
            self._endpoint.late_batches.pop(self._key, None)

    def _is_ready(self) -> bool:
        return self._is_over or (self._is_late and not self._is_told())

    def _take(self) -> Frames:
        """Return the next reply; of large results, as many as go well into one message."""
        counts: list[tuple[int, int]] = []
        frames: list[Buffer] = []
        size = 0
        while self._framed and size <= LARGE:
            index, each = self._framed.popleft()
            counts.append((index, len(each)))
            frames += each
            size += wire.size(each)
        values = self._values
        pairs = [values.popleft() for _ in range(len(values))]  # others may append meanwhile
        try:
            columns: Iterable[Sequence[Any]] = zip(*pairs, strict=True) if pairs else ((), ())
            body = self._endpoint.quick.dumps((*columns, counts))
        except Exception as error:  # noqa: BLE001 - for want of memory: those who wait are told
            self._framed.clear()
            self._forget()
            return self._endpoint.failed(error)
        if self._framed and not self._is_late:
            self._is_late = True
            self._endpoint.keep_late(self._key, self)
        self._forget()
        return [wire.QUICK_OK, body, *frames]
