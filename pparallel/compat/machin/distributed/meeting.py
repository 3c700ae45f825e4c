"""How the members of a world on one machine meet: each says who it is, rank 0 tells all.

What they say is a line of JSON, of a limited length; nothing is unpickled::

    a member     {"name": ..., "rank": ..., "size": ..., "transport": ...}
    rank 0       {"here": [ranks]}                              as often as one comes
    then         {"names": [...], "address": ..., "keys": {...}}
    or           {"problem": [kind, ...]}                       to everybody

The connection of a member that waits stays open, so that its death is seen; one that waits no
longer says an empty line.
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn, Self

from pydantic import SecretStr

from pparallel.compat.machin.distributed import folder
from pparallel.compat.machin.distributed.cards import Card, Told, in_words, misfit
from pparallel.errors import (
    AuthenticationError,
    CallTimeoutError,
    ConfigError,
    PeerLostError,
    PparallelError,
)
from pparallel.runtime.processes import close_private, private
from pparallel.runtime.resources import is_exhausted
from pparallel.runtime.waits import at_most

logger = logging.getLogger(__name__)

GRACE = 5.0  #: seconds that those who come late have to hear what is wrong

_PAUSE = 0.02  #: seconds between two attempts to reach rank 0, or to let somebody in
_HELLO = 4096  #: bytes of what a member says at most
_TOLD = 2**24  #: bytes of what it is told
_SENDING = 5.0  #: seconds that it may take to read that
_LATE = b"\n"  #: what one says that waits no longer

_PROBLEMS: Mapping[str, type[PparallelError]] = {
    each.__name__: each for each in (CallTimeoutError, ConfigError, PeerLostError)
}


class Reception:
    """Where rank 0 receives the others.

    Args:
        me: rank 0.
        door: where they knock.
        timeout: seconds that they have.
    """

    def __init__(self, me: Card, door: socket.socket, timeout: float) -> None:
        self._me, self._door, self._timeout = me, door, timeout
        self._deadline = time.monotonic() + timeout
        self._selector = selectors.DefaultSelector()
        self._said: dict[socket.socket, bytearray] = {}  # by who has not said everything yet
        self._here: dict[socket.socket, Card] = {}
        self._is_exhausted = False  # so that nobody can be let in; logged once

    def __enter__(self) -> Self:
        self._door.setblocking(False)
        self._selector.register(self._door, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        close_private(*self._said, *self._here)
        self._selector.close()

    def names(self) -> tuple[str, ...]:
        """Return the names of all members by rank, once all have come.

        Raises:
            ConfigError: what they say does not fit together.
            PeerLostError: one ended meanwhile.
            CallTimeoutError: some did not come; it names their ranks.
        """
        while missing := self._missing():
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._refuse(CallTimeoutError, f"the arrival of {in_words(missing)}", self._timeout)
            for sock, card in self._heard(left):
                self._take(sock, card)
        cards = sorted([self._me, *self._here.values()], key=lambda each: each.rank)
        return tuple(each.name for each in cards)

    def tell(
        self, names: Sequence[str], address: str, keys: Mapping[str, Mapping[str, SecretStr]]
    ) -> None:
        """Tell each member what it needs to reach the others: its own keys alone."""
        for sock, card in self._here.items():
            own = {key: each.get_secret_value() for key, each in keys.get(card.name, {}).items()}
            self._say(sock, {"names": names, "address": address, "keys": own})

    # -- inside -------------------------------------------------------------------------------

    def _missing(self) -> list[int]:
        here = {0, *(each.rank for each in self._here.values())}
        return [rank for rank in range(self._me.size) if rank not in here]

    def _take(self, sock: socket.socket, card: Card | None) -> None:
        """Take in a member that has said who it is, or the end of one that had."""
        if card is None:
            missing, is_late = in_words(self._missing()), _has_said_more(sock)
            gone = self._here.pop(sock)
            close_private(sock)
            if is_late:
                self._refuse(CallTimeoutError, f"the arrival of {missing}", self._timeout)
            self._refuse(PeerLostError, gone.name, f"went away while it waited for {missing}")
        problem = misfit(card, [self._me, *self._here.values()])
        self._here[sock] = card
        if problem:
            self._refuse(ConfigError, problem)
        here = [0, *(each.rank for each in self._here.values())]
        for each in self._here:
            self._say(each, {"here": here})

    def _heard(self, timeout: float) -> Iterator[tuple[socket.socket, Card | None]]:
        """Yield who has said who it is, or has ended after that."""
        for key, _ in self._selector.select(at_most(timeout)):
            sock = key.fileobj
            if sock is self._door:
                self._open_door()
            elif isinstance(sock, socket.socket):
                if sock in self._here:
                    self._selector.unregister(sock)  # it waits no longer, or has ended
                    yield sock, None
                elif (card := self._listen(sock)) is not None:
                    yield sock, card

    def _open_door(self) -> None:
        try:
            sock = private(lambda: self._door.accept()[0])
        except OSError as error:
            if is_exhausted(error):
                self._wait_for_room(error)
            return  # else it went away again
        self._is_exhausted = False
        try:
            folder.peer(sock)
        except AuthenticationError as error:
            logger.warning("%s", error)
            close_private(sock)
            return
        sock.setblocking(False)
        self._said[sock] = bytearray()
        self._selector.register(sock, selectors.EVENT_READ)

    def _wait_for_room(self, error: OSError) -> None:
        if not self._is_exhausted:
            logger.warning("no member can be let into the world for now: %s", error)
        self._is_exhausted = True
        time.sleep(_PAUSE)

    def _listen(self, sock: socket.socket) -> Card | None:
        """Return who is there, once that has been said."""
        said = self._said[sock]
        try:
            data = sock.recv(_HELLO)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        said += data
        card = Card.read(said) if said.endswith(b"\n") else None
        if card is None and data and len(said) < _HELLO and not said.endswith(b"\n"):
            return None
        del self._said[sock]
        if card is None:
            if said:
                logger.warning("somebody is not let into the world: what it says is no hello")
            self._selector.unregister(sock)
            close_private(sock)
        return card

    def _refuse(self, kind: type[PparallelError], *facts: Any) -> NoReturn:
        """Tell all that are here, and those that come a little later, what is wrong."""
        problem = {"problem": [kind.__name__, *facts]}
        told = 1
        for sock in self._here:
            told += self._say(sock, problem)
        end = min(self._deadline, time.monotonic() + GRACE)
        while told < self._me.size and (left := end - time.monotonic()) > 0:
            for sock, card in self._heard(left):
                if card is not None:
                    self._here[sock] = card
                    told += self._say(sock, problem)
        raise kind(*facts)

    def _say(self, sock: socket.socket, what: Mapping[str, Any]) -> bool:
        """Return whether a member has been told; one that has ended is found by its silence."""
        sock.settimeout(_SENDING)
        try:
            sock.sendall(json.dumps(what).encode() + b"\n")
        except OSError:
            return False
        finally:
            sock.setblocking(False)
        return True


@contextmanager
def receiving(me: Card, place: str, timeout: float) -> Iterator[Reception]:
    """Receive, as rank 0, the other members of a world.

    Raises:
        ConfigError: another process does so at that place.
    """
    with folder.listening(place) as door, Reception(me, door, timeout) as reception:
        yield reception


def join(me: Card, place: str, timeout: float) -> Told:
    """Be told, as another rank, how to reach the members of a world, once all have come.

    Raises:
        ConfigError: what they say does not fit together.
        PeerLostError: rank 0 or another member ended meanwhile.
        CallTimeoutError: rank 0 or others did not come in time; it names their ranks.
    """
    deadline = time.monotonic() + timeout
    with ExitStack() as stack:
        while (sock := folder.connect(place)) is None:
            if time.monotonic() >= deadline:
                where = f"the arrival of rank 0 at {folder.path_of(place)}"
                raise CallTimeoutError(where, timeout)
            time.sleep(_PAUSE)
        stack.callback(close_private, sock)
        missing = [rank for rank in range(me.size) if rank not in (0, me.rank)]
        for told in _lines(sock, me, deadline):
            if "problem" in told:
                kind, *facts = told["problem"]
                raise _PROBLEMS[kind](*facts)
            if "names" in told:
                keys = {name: SecretStr(each) for name, each in told["keys"].items()}
                return Told(tuple(told["names"]), told["address"], keys)
            missing = [rank for rank in missing if rank not in told["here"]]
        raise CallTimeoutError(f"the arrival of {in_words(missing)}", timeout)


def _lines(sock: socket.socket, me: Card, deadline: float) -> Iterator[dict[str, Any]]:
    """Say who this is; yield what rank 0 says to that, until the time is over.

    Raises:
        PeerLostError: it ended meanwhile.
    """
    said = bytearray()
    try:
        sock.sendall(me.written())
        while len(said) < _TOLD:
            sock.settimeout(at_most(max(0.001, deadline - time.monotonic())))
            if not (data := sock.recv(2**16)):
                break
            *lines, said = (said + data).split(b"\n")
            for each in lines:
                yield json.loads(each)
    except TimeoutError:
        with suppress(OSError):
            sock.sendall(_LATE)
        return
    except ConnectionError:
        pass  # as its end is
    raise PeerLostError("rank 0", "ended before all members had come")


def _has_said_more(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(len(_LATE)))
    except OSError:
        return False
