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
from collections.abc import Callable, Generator
from typing import NamedTuple

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


class Word(NamedTuple):
    """A packet of one end.

    Attributes:
        said: its bytes.
        name: of the member at the other end, as far as it has said so.
        knows: whether the other end has proved itself.
    """

    said: bytes
    name: str
    knows: bool = False


#: The part of one end: it yields what it says, is sent what the other one says, and returns its
#: last word and who is there. Raises ``AuthenticationError`` where the other end does not know the
#: job's key, and ``RefusedError`` where it runs something else, is another member, or refuses.
Part = Generator[Word, bytes, tuple[bytes, Hello]]


def outbound(me: Hello, key: bytes, pid: int, name: str) -> Part:
    """Return the part of the end that connects to member *name*, which process *pid* is to be."""
    first = me.pack() + os.urandom(NONCE)
    said = _unless_refused((yield Word(first, name)))
    words, proof = said[:-PROOF], said[-PROOF:]
    if not hmac.compare_digest(proof, _proof(key, _CALLED, first + words)):
        raise AuthenticationError(f"who answers for member {name!r} does not know this job's key")
    hello = _known(Hello.unpack(words[:-NONCE]), pid)
    if hello.name != name:
        raise RefusedError(f"where {name!r} should be is {hello.name!r}")
    mine = _proof(key, _CALLER, first + words)
    if _unless_refused((yield Word(mine, name, knows=True))) != _WELCOME:
        raise RefusedError("what came is no welcome")
    return b"", hello


def inbound(me: Hello, key: bytes, pid: int, admit: Callable[[Hello], None]) -> Part:
    """Return the part of the end that is connected to.

    Args:
        me: what this end says of itself.
        key: the job's.
        pid: the process at the other end.
        admit: lets a member in that has proved itself, or raises ``RefusedError``.
    """
    said = yield Word(b"", "")
    if not NONCE < len(said) <= HELLO + NONCE:
        raise RefusedError("what came is no hello of a member")
    hello = _known(Hello.unpack(said[:-NONCE]), pid)
    mine = me.pack() + os.urandom(NONCE)
    both = said + mine
    proof = yield Word(mine + _proof(key, _CALLED, both), hello.name)
    if not hmac.compare_digest(proof, _proof(key, _CALLER, both)):
        raise AuthenticationError("it does not know this job's key")
    admit(hello)
    return _WELCOME, hello


class Introduction:
    """A connection whose ends have not let one another in yet, which the dispatcher serves."""

    def __init__(
        self,
        connection: Connection,
        part: Part,
        name: str,
        arena: int,
        let_in: LetIn,
        failed: Failed,
    ) -> None:
        """Begin.

        Args:
            connection: the connection.
            part: of this end, whose first word has been said.
            name: of the other end, if it is known.
            arena: the descriptor that goes along once the other end has proved itself; -1: none.
            let_in: called when both ends have let one another in.
            failed: called if that does not come about.
        """
        self._connection, self._part, self._name, self._arena = connection, part, name, arena
        self._let_in, self._failed = let_in, failed
        self._is_over = False
        connection.dispatcher.register(connection.sock.fileno(), self._event)

    def fail(self, error: Exception) -> None:
        """End it, unless it has ended."""
        if not self._is_over:
            self._is_over = True
            self._connection.dispatcher.unregister(self._connection.sock.fileno())
            self._failed(self._connection, self._name, error)

    def _event(self, said: int) -> None:
        sock, hello, knows = self._connection.sock, None, True
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
            try:
                word, self._name, knows = self._part.send(data)
                messages.close(fds)  # nothing comes along yet
                fds = []
            except StopIteration as end:
                word, hello = end.value
            if word:
                messages.send_with(sock, word, [self._arena] if knows and self._arena >= 0 else ())
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


def _unless_refused(said: bytes) -> bytes:
    if said.startswith(_REFUSED):
        raise RefusedError(said[1:].decode(errors="replace"))
    return said


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
