"""How two members prove to one another that they are of the same job.

Each message is one packet of a fixed form; nothing here is unpickled, and none is longer than
:data:`LONGEST`::

    caller   hello, 32 random bytes
    called   hello, 32 random bytes, proof
    caller   proof                            with the descriptor of its arena, if it has one
    called   welcome, or refused and why      likewise

A proof is the SHA-256 HMAC, by the job's key, of all that was said so far, and of who proves: it
can be neither repeated nor reflected. The kernel has said before whose process the other end is.

Source: challenge and response as in multiprocessing.connection (CPython, Lib/multiprocessing),
with both ends' words bound into the proofs.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable

from pparallel.errors import AuthenticationError
from pparallel.runtime.links import Hello, ProcessId, RefusedError
from pparallel.runtime.links.hello import LONGEST as HELLO
from pparallel_ipc import messages
from pparallel_ipc.connection import Connection

NONCE = 32  #: random bytes of each end
PROOF = 32  #: bytes of a SHA-256 digest
LONGEST = HELLO + NONCE + PROOF

_WELCOME, _REFUSED = b"+", b"-"
_CALLER, _CALLED = b"caller", b"called"

LetIn = Callable[[Connection, Hello, list[int]], None]  #: who is there, and what came along
Failed = Callable[[Connection, str, Exception], None]  #: who was there, if it is known, and why


class Initiator:
    """The end that connects; it is given packets as they come, as :class:`Responder` is.

    Attributes:
        name: of the member that is to be there.
        knows: whether the other end has proved itself.
        first: what is said first.
    """

    def __init__(self, me: Hello, key: bytes, pid: int, name: str) -> None:
        self.name, self.knows = name, False
        self._key, self._pid = key, pid
        self.first = me.pack() + os.urandom(NONCE)
        self._hello: Hello | None = None

    def take(self, said: bytes) -> tuple[bytes, Hello | None]:
        """Return what to say to a packet, if anything; and who is there, once it lets this one in.

        Raises:
            AuthenticationError: it does not know the job's key.
            RefusedError: it runs something else, is another member, or refuses this one.
        """
        if said.startswith(_REFUSED):
            raise RefusedError(said[1:].decode(errors="replace"))
        if self._hello is not None:
            if said != _WELCOME:
                raise RefusedError("what came is no welcome")
            return b"", self._hello
        words, proof = said[:-PROOF], said[-PROOF:]
        both = self.first + words
        if not hmac.compare_digest(proof, _proof(self._key, _CALLED, both)):
            message = f"who answers for member {self.name!r} does not know this job's key"
            raise AuthenticationError(message)
        hello = _known(Hello.unpack(words[:-NONCE]), self._pid)
        if hello.name != self.name:
            raise RefusedError(f"where {self.name!r} should be is {hello.name!r}")
        mine = _proof(self._key, _CALLER, both)
        self._hello, self.knows = hello, True
        return mine, None


class Responder:
    """The end that is connected to; it is given packets as they come, and never waits.

    Attributes:
        knows: whether the other end has proved itself.
    """

    def __init__(self, me: Hello, key: bytes, pid: int, admit: Callable[[Hello], None]) -> None:
        """Know who may come.

        Args:
            me: what this end says of itself.
            key: the job's.
            pid: the process at the other end.
            admit: lets a member in that has proved itself, or raises ``RefusedError``.
        """
        self._me, self._key, self._pid, self._admit = me, key, pid, admit
        self._said, self.knows = b"", False
        self._hello: Hello | None = None

    @property
    def name(self) -> str:
        """What the other end calls itself, if it has said so."""
        return "" if self._hello is None else self._hello.name

    def take(self, said: bytes) -> tuple[bytes, Hello | None]:
        """Return what to say to a packet; and who is there, once that is proved.

        Raises:
            AuthenticationError: it does not know the job's key.
            RefusedError: it is no member that may come now.
        """
        if self._hello is None:
            if not NONCE < len(said) <= HELLO + NONCE:
                raise RefusedError("what came is no hello of a member")
            hello = _known(Hello.unpack(said[:-NONCE]), self._pid)
            mine = self._me.pack() + os.urandom(NONCE)
            both = said + mine
            answer = mine + _proof(self._key, _CALLED, both)
            self._said, self._hello = both, hello
            return answer, None
        if not hmac.compare_digest(said, _proof(self._key, _CALLER, self._said)):
            raise AuthenticationError("it does not know this job's key")
        self.knows = True
        self._admit(self._hello)
        return _WELCOME, self._hello


class Introduction:
    """A connection whose ends have not let one another in yet, which the dispatcher serves."""

    def __init__(
        self,
        connection: Connection,
        end: Initiator | Responder,
        arena: int,
        let_in: LetIn,
        failed: Failed,
    ) -> None:
        """Begin.

        Args:
            connection: the connection.
            end: this one.
            arena: the descriptor that goes along once the other end has proved itself; -1: none.
            let_in: called when both ends have let one another in.
            failed: called if that does not come about.
        """
        self._connection, self._end, self._arena = connection, end, arena
        self._let_in, self._failed = let_in, failed
        self._is_over = False
        connection.dispatcher.register(connection.sock.fileno(), self._event)

    def fail(self, error: Exception) -> None:
        """End it, unless it has ended."""
        if not self._is_over:
            self._is_over = True
            self._connection.dispatcher.unregister(self._connection.sock.fileno())
            self._failed(self._connection, self._end.name, error)

    def _event(self, said: int) -> None:
        sock, end = self._connection.sock, self._end
        fds: list[int] = []
        try:
            data, fds = messages.receive(sock)
        except BlockingIOError:
            return
        except (OSError, MemoryError) as error:
            self.fail(error)
            return
        try:
            if not data:
                raise ConnectionResetError("the connection was closed")
            word, hello = end.take(data)
            if hello is None:  # nothing comes along yet
                messages.close(fds)
                fds = []
            if word:
                along = [self._arena] if end.knows and self._arena >= 0 else ()
                messages.send_with(sock, word, along)
        except Exception as error:  # noqa: BLE001 - reported to whoever waits
            messages.close(fds)
            self.fail(error)
            return
        if hello is not None:
            self._is_over = True
            self._connection.dispatcher.unregister(sock.fileno())
            self._let_in(self._connection, hello, fds)


def refusal(why: str) -> bytes:
    """Return what is said to whom is not let in."""
    return _REFUSED + why.encode()[: LONGEST - 1]


def _known(hello: Hello, pid: int) -> Hello:
    """Return *hello* with the process that the kernel names: what a peer claims does not count."""
    if pid == 0:  # of a container: the kernel has no number for it here, and it cannot be watched
        return hello
    try:
        process = ProcessId.of(pid)
    except ProcessLookupError:
        raise RefusedError(f"member {hello.name!r} has died (process {pid})") from None
    return Hello(hello.name, hello.incarnation, process, hello.address)


def _proof(key: bytes, who: bytes, said: bytes) -> bytes:
    return hmac.digest(key, who + said, "sha256")
