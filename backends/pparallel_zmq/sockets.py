"""Makes the sockets of a member, admits who has a key, and closes them all."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import select
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import zmq

from pparallel.runtime.links.dispatcher import Dispatcher
from pparallel.runtime.resources import explaining
from pparallel_zmq.address import Address
from pparallel_zmq.config import ZmqTransportConfig
from pparallel_zmq.keys import Keyring
from pparallel_zmq.messages import Limits
from pparallel_zmq.strangers import WATCHED, Strangers

logger = logging.getLogger(__name__)

NOW = int(zmq.NOBLOCK)
MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
EVENTS, POLLIN, POLLOUT = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.POLLOUT)
#: Parts of the liveness bound: between pings, without an answer to one, and to come back for a
#: connection that broke. All three may pass before a member is given up.
BEAT, SILENCE, RETURN = 0.1, 0.5, 0.35

_LINGER = 1.0  #: seconds that closing waits until the answers have left
_RETRY = 0.0375  #: part of the liveness bound between attempts to come back
_DESCRIPTORS = 16  #: that a context and its first sockets take, and some to spare
_SEALED = 256  #: bytes that encryption may add to a part
_EVENT = struct.Struct("=hi")


class Socket(zmq.Socket[bytes]):
    """A socket that sends without the options of pyzmq's own that nobody here uses."""

    send = zmq.backend.Socket.send  # type: ignore[assignment]


class _File(NamedTuple):
    """The file of a Unix socket that this process has bound.

    Attributes:
        path: its path.
        inode: of the file; another process may have bound over it.
    """

    path: str
    inode: int

    def remove(self) -> None:
        """Remove it, if it is still this one."""
        with suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == self.inode:
                os.unlink(self.path)


class Sockets:
    """A context of the member's own. With keys it admits members alone, without them anybody.

    Attributes:
        dispatcher: empties the sockets.
        bound: seconds after which a member that cannot be reached is given up.
        limits: of what comes by them.
        window: pieces of a message that may be under way.
        strangers: closes connections of others.
    """

    def __init__(
        self,
        name: str,
        keyring: Keyring | None,
        config: ZmqTransportConfig,
        limits: Limits,
        dispatcher: Dispatcher,
    ) -> None:
        self._name, self._keyring, self.dispatcher = name, keyring, dispatcher
        self._config, self.limits, self.window = config, limits, config.window
        self.bound = config.liveness_bound
        self.strangers = Strangers()
        self._numbers = itertools.count()
        _check_descriptors()
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
        self._open: dict[Socket, _File | None] = {}

    def listening(self, address: Address) -> Socket:
        """Return a socket, not bound yet, by which others reach this member, and make the judge.

        Raises:
            OSError, ZMQError: there are no descriptors or no memory for it.
        """
        if self._keyring is not None:
            judge = self._socket(zmq.ROUTER)
            judge.bind("inproc://zeromq.zap.01")
            self.watch(judge, lambda: self._judge(judge))
        socket = self._server(self._socket(zmq.ROUTER, address))
        socket.linger = int(_LINGER * 1000)
        socket.router_mandatory = True  # an error for who has gone, not silence
        # libzmq counts what a peer is let in by as a message that is never read (pipe.cpp).
        socket.rcvhwm = self._config.high_water_mark + 1
        socket.sndhwm = 0
        socket.backlog = 128
        return socket

    def bind(self, socket: Socket, address: Address) -> Address:
        """Bind a socket, and return where others reach it; its file goes as it is closed.

        Raises:
            OSError, ZMQError: the address cannot be had, or there are no descriptors.
        """
        socket.bind(str(address))
        if not address.is_tcp:  # libzmq leaves the file behind, and binds over one that is there
            self._open[socket] = _File(address.path, os.stat(address.path).st_ino)
            return address
        port = socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        return Address(address.host, int(port))

    def connecting(self, to: str, address: Address) -> Socket:
        """Return a socket, not connected yet, by which messages to member *to* leave.

        It asks for signs of life, and breaks the connection if none come.

        Raises:
            OSError, ZMQError: there are no descriptors or no memory for it.
        """
        _check_descriptors()
        socket = self._asking(self._client(zmq.DEALER, to, address))
        bound = self.bound
        socket.sndhwm = self._config.high_water_mark
        socket.reconnect_ivl = max(10, int(bound * _RETRY * 1000))
        socket.reconnect_ivl_max = max(100, int(bound * 1000))
        if self._keyring is None:
            socket.routing_id = self._name.encode() + b"\0" + secrets.token_bytes(16)
        return socket

    def direct(self, address: Address) -> tuple[list[Socket], str]:
        """Return a socket that one other end can connect to, with its monitor, and where.

        It asks for signs of life, as that of :meth:`connecting` does.

        Raises:
            OSError, ZMQError: there are no descriptors or no memory for it, or no address.
        """
        _check_descriptors()
        made = [self._asking(self._server(self._socket(zmq.PAIR, address)))]
        made[0].sndhwm = 0
        path = address.path and f"{address.path}-{next(self._numbers)}"
        try:
            if address.is_tcp:
                made.append(self.monitor(made[0], WATCHED, self.strangers.happened)[0])
            return made, str(self.bind(made[0], Address(address.host, path=path)))
        except BaseException:
            self.close(*made)
            raise

    def direct_to(self, to: str, address: str) -> Socket:
        """Return a socket connected to that which *to* has made by :meth:`direct`.

        Raises:
            OSError, ZMQError: there are no descriptors or no memory for it.
        """
        _check_descriptors()
        socket = self._client(zmq.PAIR, to, Address.parse(address))
        socket.rcvhwm = socket.sndhwm = 0
        socket.linger = int(_LINGER * 1000)
        socket.reconnect_ivl = -1  # one that has ended does not come back
        try:
            socket.connect(address)
        except BaseException:
            self.close(socket)
            raise
        return socket

    def _asking(self, socket: Socket) -> Socket:
        bound = self.bound
        # libzmq 4.3.5 aborts the process (stream_engine_base.cpp, !_io_error) if it is time to ask
        # while a connection has ended of which nothing more could be taken in: there is always room
        # for what comes here, nothing is waited for on closing, and no other socket asks.
        socket.rcvhwm = socket.linger = 0
        socket.heartbeat_ivl = max(1, int(bound * BEAT * 1000))
        socket.heartbeat_timeout = max(1, int(bound * SILENCE * 1000))
        socket.heartbeat_ttl = max(100, int(bound * 1000))
        return socket

    def _client(self, kind: int, to: str, address: Address) -> Socket:
        socket = self._socket(kind, address)
        if self._keyring is not None:
            socket.curve_serverkey = self._keyring.publics[to]
            socket.curve_publickey = self._keyring.publics[self._name]
            socket.curve_secretkey = self._keyring.secret
        return socket

    def _server(self, socket: Socket) -> Socket:
        if self._keyring is not None:
            socket.curve_server = True
            socket.curve_secretkey = self._keyring.secret
        return socket

    def monitor(
        self, socket: Socket, events: int, happened: Callable[[int, int], None]
    ) -> tuple[Socket, Callable[[], bool]]:
        """Have *happened* called with what becomes of the connections of a socket.

        Returns:
            The socket that reports it, and what empties that.
        """
        name = f"inproc://monitor-{next(self._numbers)}"
        socket.monitor(name, events)
        monitor = self._socket(zmq.PAIR)
        monitor.rcvhwm = 0  # or libzmq's thread stands still once too much is to be reported
        monitor.connect(name)

        def empty() -> bool:
            with suppress(zmq.Again):
                while not monitor.closed:
                    happened(*_EVENT.unpack(monitor.recv_multipart(NOW)[0]))
            return False

        self.watch(monitor, empty)
        return monitor, empty

    def watch(self, socket: Socket, empty: Callable[[], bool]) -> int:
        """Have a socket emptied; return its descriptor."""
        descriptor = socket.fileno()
        self.dispatcher.register(descriptor, lambda _: empty())
        self.dispatcher.look(descriptor)
        return descriptor

    def close(self, *sockets: Socket) -> None:
        """Close sockets, each with the one that reports what becomes of it; safe to call again.

        No monitor may be closed before its socket reports nothing any more: libzmq would wait for
        the monitor to take a report in, its thread too, which serves all sockets of the context.
        """
        for each in sockets:
            with suppress(zmq.ZMQError):  # it is closed
                each.disable_monitor()
        for each in sockets:
            if each in self._open:
                file = self._open.pop(each)
                self.dispatcher.unregister(each.fileno())
                each.close()
                if file is not None:
                    file.remove()

    def end(self) -> None:
        """Close all sockets and the context, once the answers have left."""
        self.close(*list(self._open))  # together, so that no monitor goes before its socket
        self._context.term()

    def _socket(self, kind: int, address: Address | None = None) -> Socket:
        socket = Socket(self._context, kind)
        self._open[socket] = None
        socket.linger = 0
        if address is not None:
            socket.maxmsgsize = self.limits.part + _SEALED
            socket.handshake_ivl = int(self._config.handshake_timeout * 1000)
            socket.ipv6 = ":" in address.host
        return socket

    def _judge(self, judge: Socket) -> bool:
        """Answer libzmq's questions of who may connect (ZAP, RFC 27).

        Without an answer CURVE admits whoever knows the server's public key. The name in it is
        attached by libzmq to every message of that connection.
        """
        with suppress(zmq.Again):
            while True:
                sender, empty, *request = judge.recv_multipart(NOW)
                answer = [*request[:2], *self._answer(request)]
                judge.send_multipart([sender, empty, *answer], NOW)
        return False

    def _answer(self, request: list[bytes]) -> list[bytes]:
        name = None
        if self._keyring is not None and len(request) == 7 and request[5] == b"CURVE":
            name = self._keyring.owners.get(request[6])
        if name is None:
            logger.info("A peer that could not prove who it is was refused")
            return [b"400", b"not a member of this job", b"", b""]
        return [b"200", b"OK", name.encode(), b""]


@contextmanager
def making(what: str) -> Iterator[None]:
    """Raise ``ResourceExhaustedError`` where sockets cannot be made for want of something."""
    with explaining(what):
        try:
            yield
        except zmq.ZMQError as error:  # to pyzmq that is no error of the system
            raise OSError(error.errno, str(error)) from None


def _check_descriptors() -> None:
    """Refuse to go on where libzmq 4.3.5 would end the process for want of descriptors.

    It does so where it starts a context (``epoll.cpp:38``), binds (``ip_resolver.cpp:542``), and
    accepts at a Unix socket (``ipc_listener.cpp:297``), perhaps what this same process connects.

    Raises:
        OSError: there are too few.
    """
    tuple(select.epoll() for _ in range(_DESCRIPTORS))  # they close themselves, whatever comes
