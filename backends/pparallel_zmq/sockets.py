"""Makes the sockets of a member, and closes them with it."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import select
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import Any, ClassVar

import zmq
from zmq.utils.garbage import gc  # what is imported when it is needed wants a descriptor then

from pparallel.errors import ResourceExhaustedError
from pparallel.runtime import dedicated
from pparallel.runtime.resources import explaining, start_thread
from pparallel_zmq.address import Address
from pparallel_zmq.config import ZmqTransportConfig
from pparallel_zmq.keys import Keyring
from pparallel_zmq.wire import Limits

logger = logging.getLogger(__name__)


class Socket(zmq.Socket[bytes]):
    """A socket that sends without the options of pyzmq's own that nobody here uses."""

    send = zmq.backend.Socket.send  # type: ignore[assignment]

    def __init__(self, context: zmq.Context[Any], kind: int, made: list[Socket]) -> None:
        """Make a socket that is among *made* from before: whatever interrupts this loses none."""
        made.append(self)
        super().__init__(context, kind)


class Connection:
    """A socket, and a second one that tells of its connections if there is one.

    Whoever has it closes it. What a signal's handler has interrupted may have lost it: then it is
    closed with the next one that is made, or at the end.

    Attributes:
        made: its sockets.
        used_by: the thread that is inside of it, which alone may close it then; 0: none.
    """

    def __init__(self) -> None:
        self.made: list[Socket] = []
        self.used_by = 0

    def close(self) -> None:
        """Close the sockets; safe to call again."""
        close(self.made)


LINGER = 1.0  #: seconds that closing waits until what was sent has gone
HEARD = 5.0  #: seconds that it waits at most until pyzmq has let go of that
#: Parts of the liveness bound: between pings, without an answer to one, and to come back for a
#: connection that broke. All three may pass before a member is given up.
BEAT, SILENCE, RETURN = 0.1, 0.5, 0.35
RETRY = 0.0375  #: part of it between attempts to come back
DESCRIPTORS = 16  #: that a context and its first sockets take, and some to spare
PAUSE = 0.01  #: seconds after what came could not be handled
SEALED = 256  #: bytes that encryption may add to a part

_EVENT = struct.Struct("=hi")

FAILED = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
#: What is to be told of connections that were accepted, and of one that was made.
_ACCEPTED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | FAILED
)


class Sockets:
    """A context of the member's own, with a judge of who may connect if it has keys.

    Without keys anybody may, and is who he says.
    """

    def __init__(
        self, name: str, keyring: Keyring | None, config: ZmqTransportConfig, limits: Limits
    ) -> None:
        self._name, self._keyring = name, keyring
        self._config, self._limits = config, limits
        self._numbers = itertools.count()
        _check_descriptors()
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
        self._gatekeeper: Gatekeeper | None = None
        self._open: dict[weakref.ref[Connection], list[Socket]] = {}

    def bound(self, address: Address) -> tuple[Connection, Address]:
        """Return the socket where others reach this member, on TCP with a monitor; its address.

        Raises:
            ZMQError: the address is taken, or is not of this machine.
        """
        ZeroCopy.users.add(self)
        if self._keyring is not None:
            self._gatekeeper = Gatekeeper(self._context, self._keyring)
        connection = self._socket(zmq.ROUTER, address)
        socket = connection.made[0]
        socket.router_mandatory = True  # who has gone is told of, not skipped silently
        # libzmq counts what a peer is let in by as a message that is never read (pipe.cpp).
        socket.rcvhwm = self._config.high_water_mark + 1
        socket.sndhwm = 0  # replies never wait: there are no more than requests were let in
        socket.backlog = 128
        if self._keyring is not None and address.is_tcp:
            socket.curve_server = True
            socket.curve_secretkey = self._keyring.secret
        elif self._keyring is not None:
            socket.plain_server = True
        if address.is_tcp:
            self._monitor(connection, _ACCEPTED)
        socket.bind(str(address))
        if address.is_tcp:
            found = Address.parse(socket.get_string(zmq.LAST_ENDPOINT))
            address = Address(address.host, found.port)
        return connection, address

    def connected(self, to: str, address: Address, *, beats: bool = False) -> Connection:
        """Return a socket connected to member *to*, with one that tells of the connection.

        With *beats* it asks for signs of life, and breaks the connection if none come.

        Raises:
            OSError, ZMQError: there are no descriptors or no memory for it; nothing is left.
        """
        _check_descriptors()
        connection = self._socket(zmq.DEALER, address)
        try:
            self._set(connection.made[0], to, address, beats)
            self._monitor(connection, _EVENTS)
            connection.made[0].connect(str(address))
        except BaseException:
            connection.close()
            raise
        return connection

    def _set(self, socket: Socket, to: str, address: Address, beats: bool) -> None:
        socket.linger = 0
        bound = self._config.liveness_bound
        if beats:
            # libzmq 4.3.5 aborts the process (stream_engine_base.cpp, !_io_error) if it is time to
            # ask while a connection has ended of which nothing more could be taken in: there is
            # always room for what comes here, nothing is waited for on closing, and no other
            # socket asks.
            socket.rcvhwm = 0
            socket.heartbeat_ivl = max(1, int(bound * BEAT * 1000))
            socket.heartbeat_timeout = max(1, int(bound * SILENCE * 1000))
            socket.heartbeat_ttl = max(100, int(bound * 1000))
        else:
            socket.sndhwm = 0  # of one call no more is under way than its window
        socket.reconnect_ivl = max(10, int(bound * RETRY * 1000))
        socket.reconnect_ivl_max = max(100, int(bound * 1000))
        if self._keyring is None:
            socket.routing_id = self._name.encode() + b"\0" + secrets.token_bytes(16)
        elif address.is_tcp:
            socket.curve_serverkey = self._keyring.publics[to]
            socket.curve_publickey = self._keyring.publics[self._name]
            socket.curve_secretkey = self._keyring.secret
        else:
            socket.plain_username = self._name.encode()
            socket.plain_password = self._keyring.password(self._name, to).encode()

    def close(self) -> None:
        """Close all sockets but those that a thread is inside of, and end the context with these.

        pyzmq's own ``destroy()`` would close the gatekeeper's socket under its thread.
        """
        for found, made in list(self._open.items()):
            connection = found()
            if connection is None or connection.used_by in (0, get_ident()):
                close(made)
        self._context.term()
        if self._gatekeeper is not None:
            self._gatekeeper.thread.join()
        ZeroCopy.unuse(self)

    def _monitor(self, connection: Connection, events: int) -> None:
        """Make the socket that tells of a connection; see also :func:`close`."""
        name = f"inproc://monitor-{next(self._numbers)}"
        connection.made[0].monitor(name, events)
        monitor = Socket(self._context, zmq.PAIR, connection.made)
        monitor.rcvhwm = 0  # or libzmq's thread stands still once too much is to be told
        monitor.connect(name)

    def _socket(self, kind: int, address: Address) -> Connection:
        for found, made in list(self._open.items()):
            if found() is None:  # it was closed, or lost
                close(made)
                self._open.pop(found, None)
        connection = Connection()
        self._open[weakref.ref(connection)] = connection.made
        socket = Socket(self._context, kind, connection.made)
        socket.linger = int(LINGER * 1000)
        socket.maxmsgsize = self._limits.part + SEALED
        socket.sndhwm = socket.rcvhwm = self._config.high_water_mark
        socket.handshake_ivl = int(self._config.handshake_timeout * 1000)
        socket.ipv6 = ":" in address.host
        return connection


class Gatekeeper:
    """Answers libzmq's questions of who may connect (ZAP, RFC 27), in a thread of its own.

    Without one CURVE admits whoever knows the server's public key. What it answers as the user's
    id is attached by libzmq to every message of that connection.

    Attributes:
        thread: that thread, which ends when its context does.
    """

    def __init__(self, context: zmq.Context[Any], keyring: Keyring) -> None:
        self._keyring = keyring
        # One answer that fails holds up no other.
        made: list[Socket] = []
        self.thread = threading.Thread(target=self._run, name="pparallel-zap", daemon=True)
        try:
            self._socket = Socket(context, zmq.ROUTER, made)
            self._socket.linger = 0
            self._socket.bind("inproc://zeromq.zap.01")
            start_thread(self.thread)
        except BaseException:
            if self.thread.ident is None:
                close(made)
            raise

    def _run(self) -> None:
        dedicated.mark_receiving()
        with self._socket:
            try:
                while True:
                    self._answer_next()
            except zmq.ContextTerminated:
                return

    def _answer_next(self) -> None:
        try:
            sender, empty, *request = self._socket.recv_multipart()
            self._socket.send_multipart([sender, empty, *self._answer(request)])
        except zmq.ContextTerminated:
            raise
        except Exception:  # the peer tries again, and others are not to wait
            logger.exception("A peer was not let in")
            time.sleep(PAUSE)

    def _answer(self, request: list[bytes]) -> list[bytes]:
        name = self._judge(*request[3:4], *request[5:]) if len(request) >= 6 else None
        version, number = request[:2]
        if name is None:
            logger.info("A peer that could not prove who it is was refused")
            answer = [b"400", b"not a member of this job", b"", b""]
        else:
            answer = [b"200", b"OK", name.encode(), b""]
        return [version, number, *answer]

    def _judge(self, address: bytes, mechanism: bytes, *credentials: bytes) -> str | None:
        """Return the name of the member that these credentials are of."""
        if mechanism == b"CURVE" and len(credentials) == 1:
            return self._keyring.owners.get(credentials[0])
        own = f"localhost:{os.geteuid()}:"  # and gid:pid, is how libzmq tells of the peer
        if mechanism == b"PLAIN" and len(credentials) == 2 and address.startswith(own.encode()):
            name = credentials[0].decode(errors="replace")
            return name if self._keyring.admits(name, credentials[1]) else None
        return None


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
    tuple(select.epoll() for _ in range(DESCRIPTORS))  # they close themselves, whatever comes


def events(monitor: zmq.Socket[bytes]) -> Iterator[tuple[int, int]]:
    """Return what has become of connections, as their monitor tells: events with their values."""
    while not monitor.closed and zmq.zmq_poll([(monitor, int(zmq.POLLIN))], 0):
        event, value = _EVENT.unpack(monitor.recv_multipart(zmq.NOBLOCK)[0])
        yield event, value


def close(made: Sequence[Socket]) -> None:
    """Close a socket, and the one that tells of its connections; safe to call again.

    Closing takes libzmq a while. If the connection breaks meanwhile, its thread, which serves all
    sockets of the context, would wait for a monitor that is closed to take that in.
    """
    for each in made[:1]:
        with suppress(zmq.ZMQError):  # it is closed, or its context has ended
            each.disable_monitor()
    for each in made:
        each.close()


class ZeroCopy:
    """Ends the thread with which pyzmq lets go of what it sent without a copy.

    pyzmq starts it with the first such message, and never ends it.

    Attributes:
        users: of members that may send so.
    """

    users: ClassVar[set[Sockets]] = set()
    _lock = threading.RLock()

    @classmethod
    def is_ready(cls) -> bool:
        """Return whether that thread runs; a message that is large is copied if none can start."""
        if not gc.is_alive():
            with suppress(ResourceExhaustedError):  # by a thread: none that a handler interrupts
                start_thread(threading.Thread(target=cls._start, daemon=True)).join()
            if not gc.is_alive():
                logger.warning("Large messages are copied: no thread or descriptor is left")
        return gc.is_alive()

    @classmethod
    def _start(cls) -> None:
        with cls._lock, suppress(OSError, RuntimeError, MemoryError):
            if not gc.is_alive():  # another thread may have started it
                _check_descriptors()
                gc.start()

    @classmethod
    def unuse(cls, user: Sockets) -> None:
        """Take out one, and end the thread with the last."""
        with cls._lock:
            cls.users.discard(user)
            # All of ours has been sent or dropped by now, and the thread is about to hear of it.
            until = time.monotonic() + HEARD
            while gc.refs and not cls.users and time.monotonic() < until:
                time.sleep(0.001)
            if not (gc.refs or cls.users):
                gc.stop()
