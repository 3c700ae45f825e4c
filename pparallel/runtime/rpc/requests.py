"""The frames of requests."""

from __future__ import annotations

import itertools
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.pool import name_of
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Frames
from pparallel.runtime.rpc import wire
from pparallel.runtime.rpc.closures import SentFunctions, Told
from pparallel.runtime.rpc.quick import Quick, is_plain
from pparallel.runtime.rpc.refs import Registered
from pparallel.runtime.rpc.wire import IDEMPOTENT, QUICK, Kind

NOTHING: Sequence[Buffer] = ()  #: travels beside a request in the quick form

_HINT = "; register it where it is to run, and call it by name with registered_sync()"


class Requests:
    """Makes the requests of one member, and numbers those to each other member.

    Attributes:
        session: tells this member from one that had its name before.
        sent: the functions that are known by a number.
    """

    def __init__(self, serializer: Serializer, quick: Quick, members: Sequence[str]) -> None:
        # Not from the seeded streams: a member that is started again would have the same.
        self.session = secrets.randbits(32)
        self._serializer, self._quick = serializer, quick
        self._numbers = defaultdict(itertools.count, {each: itertools.count() for each in members})
        self.sent = SentFunctions(serializer)
        self._closed: Callable[[], BaseException] | None = None

    def close(self, why: Callable[[], BaseException]) -> None:
        """Raise what *why* returns instead of making any more."""
        self._closed = why

    def service(self, to: str, key: str, body: object, buffers: Sequence[Buffer]) -> Frames:
        """Return the request of a service."""
        data = self._quick.service(key, body)
        if data is None:
            frames = self._body((key, body), key)
            return self._join(to, Kind.SERVICE, frames, buffers)
        if self._closed is not None:
            raise self._closed()
        number, session = next(self._numbers[to]), self.session
        header = wire.header(Kind.SERVICE, QUICK, 1, session, get_ident(), number, 0.0)
        return [header, data, *buffers]

    def call(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        limit: float | None = None,
        idempotent: bool = False,
        ref_id: str | None = None,
    ) -> Frames:
        """Return the request to run a function, whose reply is wanted within *limit* seconds.

        With *ref_id*, its result is to be kept by that name.
        """
        kind = Kind.REGISTERED if type(what) is Registered else Kind.CALL
        told, buffers = None, NOTHING
        if ref_id is not None:
            # The name travels beside the body: the owner keeps a place for the value on arrival, so
            # that a reference passed on meanwhile finds it.
            kind, buffers = Kind.REMOTE, [ref_id.encode()]
            told = None if idempotent else self._told(to, what)
        elif not idempotent:
            beside = NOTHING
            data = self._quick.call(what, args, kwargs)
            if data is None:
                data, beside, told = self._with_data(to, what, args, kwargs)
            if data is not None:
                if self._closed is not None:
                    raise self._closed()
                number, thread, frames = next(self._numbers[to]), get_ident(), 1 + len(beside)
                header = wire.header(
                    kind, QUICK, frames, self.session, thread, number, limit or 0.0
                )
                return [header, data, *beside]
        # A name travels as data: with a serializer that sends nothing else, it is what can be
        # called.
        name = tuple(what) if isinstance(what, Registered) else told or what
        body = self._body((name, args, dict(kwargs or {})), what)
        return self._join(to, kind, body, buffers, limit, idempotent)

    def next_number(self, to: str) -> int:
        """Return the number of the next request to a member."""
        return next(self._numbers[to])

    def batch(self, thread: int, number: int, calls: object, limit: float | None) -> Frames:
        """Return the request of calls of *thread* that leave together, all of them plain data."""
        header = wire.header(Kind.BATCH, QUICK, 1, self.session, thread, number, limit or 0.0)
        return [header, self._quick.dumps(calls)]

    def rest(self, to: str, batch: int) -> Frames:
        """Return the request for results of the batch *batch* that were not there."""
        number = next(self._numbers[to])
        header = wire.header(Kind.REST, QUICK, 1, self.session, get_ident(), number, 0.0)
        return [header, self._quick.dumps(batch)]

    def _with_data(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> tuple[bytes | None, Sequence[Buffer], Told | None]:
        """Return the quick form of a call and what travels beside it, or what to tell of *what*."""
        inside = args if is_plain(args) else None
        told = None
        data = None if inside is args else self._quick.call(what, None, kwargs)
        if data is None and (told := self._told(to, what)) is not None:
            data = self._quick.call(told, inside, kwargs)
        if data is None or inside is args:
            return data, NOTHING, told
        return data, self._body(tuple(args), what, ""), told

    def number(self, to: str, what: object) -> Told | None:
        """Return what stands for a function without a name, if member *to* has it already."""
        told = self._told(to, what)
        return told if told is not None and told[1] is None else None

    def _told(self, to: str, what: object) -> Told | None:
        return self.sent.told(to, what) if self._quick.trusts else None

    def _join(
        self,
        to: str,
        kind: int,
        body: Frames,
        buffers: Sequence[Buffer],
        limit: float | None = None,
        idempotent: bool = False,
    ) -> Frames:
        flags, number = IDEMPOTENT if idempotent else 0, next(self._numbers[to])
        header = wire.header(
            kind, flags, len(body), self.session, get_ident(), number, limit or 0.0
        )
        return [header, *body, *buffers]

    def _body(self, body: object, what: object, args: str = "[1]") -> list[Buffer]:
        """Return *body* as buffers; *args*: where the arguments are in it."""
        if self._closed is not None:
            raise self._closed()
        try:
            return self._serializer.dumps(body)
        except SerializationError as error:
            names = {args: "args", "[0]": name_of(what) if callable(what) else str(what)}
            is_function = bool(args) and (error.path or "").startswith("[0]")
            error.locate({**names, "[2]": "kwargs"}, _HINT if is_function else "")
            raise
