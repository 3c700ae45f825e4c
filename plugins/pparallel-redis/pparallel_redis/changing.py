"""Changes: one script each, which takes effect once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from pparallel_redis.faults import forgotten, unsafe
from pparallel_redis.keys import Keys
from pparallel_redis.lane import Lane, Lanes
from pparallel_redis.records import Views
from pparallel_redis.scripts import FORGOTTEN, LANE_LIFE, STORED, UNSTAGED, Script
from pparallel_redis.wire import Command, ReplyError, Wire

STAGED = 60_000  #: milliseconds that pieces stay whose push does not follow
_DOUBT = " Whether the change was made is not known: pull, and go on from what is there."


class Change(NamedTuple):
    """What is to be done.

    Attributes:
        script: that does it.
        arguments: it takes.
        pieces: what is stored before, in no order with anything else.
    """

    script: Script
    arguments: list[bytes]
    pieces: list[Views]


class Changing:
    """Makes changes, each once."""

    def __init__(self, lanes: Lanes, keys: Keys, replicas: int) -> None:
        self._lanes = lanes
        self._keys = keys
        self._replicas = replicas

    def make(self, key: bytes, change: Callable[[bytes], Change]) -> bool:
        """Make a change to the hash *key*, and return whether it was made or refused.

        Args:
            key: of the hash.
            change: returns it for the token that only this change has.

        Raises:
            RedisLostError: the server is away; whether the change was made is not known.
        """
        with self._lanes.lent() as lane:
            if not lane.is_noted:
                self._note(lane)
            lane.number += 1
            made = change(lane.token())

            def act(wire: Wire, doubtful: bool) -> tuple[int, int]:
                return self._made(wire, self._commands(lane, key, made, doubtful=doubtful), made)

            result, replicas = self._lanes.run(lane, act, _DOUBT)
            if result == FORGOTTEN:
                raise forgotten(self._lanes.dialer.place)
            lane.noted()
            if result == STORED and replicas < self._replicas:
                raise unsafe(self._lanes.dialer.place, replicas, self._replicas)
            return result == STORED

    def _note(self, lane: Lane) -> None:
        """Have the server know the lane, before anything can be in doubt.

        Where there is no memory for it, less is certain, and what can be done still is.
        """
        note = (b"SET", self._keys.lane(lane.name), b"0 0", b"NX", b"EX", b"%d" % LANE_LIFE)
        with suppress(MemoryError):
            self._lanes.run(lane, lambda wire, _: wire.ask(*note))
            lane.noted()

    def _commands(self, lane: Lane, key: bytes, made: Change, *, doubtful: bool) -> list[Command]:
        token = lane.token()
        commands: list[Command] = [
            (b"SET", b"%b%b.%d" % (self._keys.stem, token, number), piece, b"NX", b"PX", _STAGED)
            for number, piece in enumerate(made.pieces)
        ]
        names = [key, self._keys.lane(lane.name)]
        counted = [b"%d" % lane.number, b"1" if doubtful else b"0"]
        commands.append((b"EVALSHA", made.script.sha, b"2", *names, *counted, *made.arguments))
        if self._replicas:
            patience = b"%d" % (self._lanes.timeout * 500)
            commands.append((b"WAIT", b"%d" % self._replicas, patience))
        return commands

    def _made(self, wire: Wire, commands: list[Command], made: Change) -> tuple[int, int]:
        """Send a change until the server has the script and what belongs to it.

        Returns:
            What came of it, and how many replicas are known to have it.
        """
        for _ in range(3):
            wire.send(commands)
            replies = [wire.receive() for _ in commands]
            result = replies[len(made.pieces)]
            if isinstance(result, ReplyError) and result.code == "NOSCRIPT":
                wire.ask(b"SCRIPT", b"LOAD", made.script.text)
                continue
            for each in replies:
                if isinstance(each, ReplyError):
                    raise each
            if result != UNSTAGED:
                return result, replies[-1] if self._replicas else 0
        message = "it forgets what it was just told"
        raise ConnectionResetError(message)


_STAGED = b"%d" % STAGED
