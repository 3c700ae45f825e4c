"""Waiting until a key changes, without asking again and again.

One connection hears of all keys that somebody in this process waits for. Redis tells only those
who listen just then; so whoever waits looks again each time that listening begins, and nothing that
happened while nobody listened is missed.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from pparallel.errors import ClosedError
from pparallel_redis.faults import NOT_NOW, is_final, refusal, silent
from pparallel_redis.lane import Lanes, Pauses
from pparallel_redis.wire import ReplyError, Wire

KEPT = 64  #: channels that stay subscribed while nobody waits


class Watch:
    """What is known of one channel.

    Attributes:
        changes: how often something has happened, or may have.
        error: why nothing will be heard any more.
        users: how many wait for it.
    """

    def __init__(self, channel: bytes, changed: threading.Condition) -> None:
        self.channel = channel
        self.changes = 0
        self.error: BaseException | None = None
        self.users = 0
        self._changed = changed

    def wait(self, seen: int, deadline: float) -> None:
        """Return when there are other changes than *seen*, or it is later than *deadline*."""
        with self._changed:
            while self.changes == seen and self.error is None:
                left = deadline - monotonic()
                if left <= 0:
                    return
                self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def tell(self) -> None:
        """Wake all who wait, to see what concerns them."""
        with self._changed:
            self.changes += 1
            self._changed.notify_all()


class Listener:
    """Hears what is published, in a thread that runs from the first wait to :meth:`close`."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._changed = threading.Condition()
        self._watches: dict[bytes, Watch] = {}
        self._orders: deque[tuple[bytes, bytes]] = deque()
        self._thread: threading.Thread | None = None
        self._alarm: socket.socket | None = None
        self._wire: Wire | None = None
        self._is_closed = False

    @contextmanager
    def watching(self, channel: bytes) -> Iterator[Watch]:
        """Listen to *channel*; as soon as that is so, there is a change."""
        watch = self._joined(channel)
        try:
            yield watch
        finally:
            with self._changed:
                watch.users -= 1

    def close(self) -> None:
        """End; who waits gets ``ClosedError``.

        The thread is woken from all that it waits for, and ends, whatever the server does. Only
        while a name is looked up or a connection is not there yet, nothing can wake it. That is
        waited for like a server that is silent, and it ends by itself when it is through.
        """
        with self._changed:
            self._is_closed = True
            self._fail(ClosedError("the ordered server"))
            thread = self._thread
            self._ring()
            if self._wire is not None:
                self._wire.wake()
        if thread is not None and thread.is_alive():
            thread.join(self._lanes.timeout)

    def abandon(self) -> None:
        """Let go of all, in a fork: the thread and the connection are the parent's."""
        if self._alarm is not None:
            self._alarm.close()
        if self._wire is not None:
            self._wire.close()

    def _joined(self, channel: bytes) -> Watch:
        with self._changed:
            if self._is_closed:
                raise ClosedError("the ordered server")
            watch = self._watches.get(channel)
            if watch is None:
                self._leave_some()
                self._orders.append((b"SUBSCRIBE", channel))
                watch = self._watches[channel] = Watch(channel, self._changed)
            watch.users += 1
            if self._thread is None or not self._thread.is_alive():
                self._start()  # one that was interrupted as it was to start is not alive
            else:
                self._ring()
            return watch

    def _leave_some(self) -> None:
        """Let the channels go that nobody has waited for longest."""
        if len(self._watches) <= KEPT:
            return
        for each in [each for each in self._watches.values() if not each.users][:-1]:
            del self._watches[each.channel]
            self._orders.append((b"UNSUBSCRIBE", each.channel))

    def _start(self) -> None:
        self._alarm, rings = socket.socketpair()
        self._alarm.setblocking(False)
        name = "pparallel-redis-listener"
        self._thread = threading.Thread(target=self._run, args=(rings,), name=name, daemon=True)
        self._thread.start()

    def _ring(self) -> None:
        if self._alarm is not None:
            with suppress(BlockingIOError):  # it rings already
                self._alarm.send(b"!")

    def _fail(self, error: BaseException) -> None:
        """Have all who wait raise *error*, and those who come begin anew."""
        for each in self._watches.values():
            each.error = error
        self._watches.clear()
        self._orders.clear()
        self._changed.notify_all()

    def _run(self, rings: socket.socket) -> None:
        error: BaseException = ClosedError("the ordered server")
        try:
            self._listen(rings)
        except Exception as found:  # noqa: BLE001 - whoever waits raises it
            error = found
        finally:
            with self._changed:
                self._fail(error)
                alarm, self._alarm, self._thread = self._alarm, None, None
            rings.close()
            if alarm is not None:
                alarm.close()

    def _listen(self, rings: socket.socket) -> None:
        """Listen until this is closed, over one connection after the other."""
        pauses = Pauses(self._lanes)
        while not self._is_closed:
            try:
                wire = self._lanes.dialer.dial(self._use)
            except OSError as error:
                if is_final(error):
                    raise
                pauses.after(error)
                continue
            try:
                Hearing(self, wire, rings).go_on()
            except OSError as error:
                if is_final(error):
                    raise
                pauses = Pauses(self._lanes)
            finally:
                wire.close()

    def _use(self, wire: Wire) -> None:
        """Have *wire* woken when this is closed, from its greeting on."""
        with self._changed:
            if self._is_closed:
                raise ClosedError("the ordered server")
            self._wire = wire

    # -- for the hearing, in the thread ------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether there is nothing more to listen for."""
        return self._is_closed

    @property
    def lanes(self) -> Lanes:
        """What else uses the server."""
        return self._lanes

    def all_channels(self) -> list[bytes]:
        """Return all channels, with which what was ordered is done."""
        with self._changed:
            self._orders.clear()
            return list(self._watches)

    def orders(self) -> list[tuple[bytes, bytes]]:
        """Return what is to be subscribed and what no longer, once."""
        with self._changed:
            orders = list(self._orders)
            self._orders.clear()
            return orders

    def heard(self, channel: bytes) -> None:
        """Wake who waits for *channel*."""
        with self._changed:
            watch = self._watches.get(channel)
        if watch is not None:
            watch.tell()


class Hearing:
    """Listens over one connection, until that is lost."""

    def __init__(self, listener: Listener, wire: Wire, rings: socket.socket) -> None:
        self._listener = listener
        self._wire = wire
        self._rings = rings
        self._timeout = listener.lanes.timeout
        self._heard = monotonic()
        self._asked: float | None = None
        self._has_heard = False

    def go_on(self) -> None:
        """Listen until the listener is closed.

        Raises:
            OSError: the connection is lost.
            PparallelError: the server refuses, or is silent.
        """
        channels = self._listener.all_channels()
        self._wire.send([*((b"SUBSCRIBE", each) for each in channels), (b"PING",)])
        with selectors.DefaultSelector() as selector:
            selector.register(self._wire, selectors.EVENT_READ)
            selector.register(self._rings, selectors.EVENT_READ)
            while not self._listener.is_closed:
                ready = {key.fileobj for key, _ in selector.select(self._patience())}
                if self._rings in ready:
                    self._rings.recv(4096)
                    orders = self._listener.orders()
                    self._wire.send(orders)
                if self._wire in ready:
                    self._hear()
                elif not self._patience():  # however often it was told what to subscribe
                    self._see_whether_it_lives()

    def _hear(self) -> None:
        self._heard, self._asked, self._has_heard = monotonic(), None, True
        self._take(self._wire.receive())
        while self._wire.holds_more:
            self._take(self._wire.receive())

    def _take(self, message: Any) -> None:
        if isinstance(message, ReplyError):
            if message.code in NOT_NOW:
                raise ConnectionResetError(str(message))
            raise refusal(self._listener.lanes.dialer.place, message) from message
        if isinstance(message, list) and message[0] in (b"message", b"subscribe"):
            self._listener.heard(message[1])

    def _patience(self) -> float:
        """Return for how many seconds more it may be silent."""
        if self._asked is None:
            return max(0.0, self._heard + self._timeout / 2 - monotonic())
        return max(0.0, self._asked + self._timeout / 3 - monotonic())

    def _see_whether_it_lives(self) -> None:
        """Ask, where nothing has been heard for long; then nothing again: it does not.

        A connection may be dead, and the server not: only of a new one is the silence believed.
        """
        if self._asked is not None:
            if self._has_heard:
                raise TimeoutError
            raise silent(self._listener.lanes.dialer.place, self._timeout)
        self._asked = monotonic()
        self._wire.send([(b"PING",)])
