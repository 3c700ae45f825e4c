"""Carry messages of several pieces between members."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from typing_extensions import Buffer

from pparallel.runtime.rpc import Reply, Request, RpcGroup
from pparallel_reducers.tally import Tally

#: (sender, head, pieces) -> a future of whether the message was accepted
Deliver = Callable[[str, Any, list[Buffer]], "Future[Reply]"]


class Courier:
    """Sends messages, piece by piece: one is made while those before it travel.

    Where members share memory nothing travels, and all pieces are told of at once.
    """

    def __init__(self, group: RpcGroup, tally: Tally) -> None:
        self._group = group
        self._tally = tally
        self._numbers = itertools.count()

    def send_at_once(
        self, to: str, key: str, head: object, memory: Sequence[Buffer] = ()
    ) -> list[Future[Reply]]:
        """As :meth:`send`, all in one piece."""
        self._tally.sent(sum(memoryview(each).nbytes for each in memory))
        body = (next(self._numbers), 0, 1, head)
        return [self._group.ask_async(to, key, body, memory)]

    def send(
        self, to: str, key: str, head: object, pieces: Iterable[memoryview], count: int
    ) -> list[Future[Reply]]:
        """Send *head* and as many *pieces* as *count* says to the :class:`Inbox` *key* of *to*.

        Returns:
            Futures of the answers to all that was sent; the last is the one to the message.
        """
        if count == 0 or self._group.arena(self._group.get_cur_name()) is not None:
            return self.send_at_once(to, key, head, list(pieces))
        number = next(self._numbers)
        sent = []
        for index, piece in enumerate(pieces):
            body = (number, index, count, head if index == count - 1 else None)
            sent.append(self._group.ask_async(to, key, body, [piece]))
            self._tally.sent(len(piece))
        return sent


def accepted(sent: Iterable[Future[Reply]]) -> bool | None:
    """Wait for the answers to one message, and return what the last says.

    Returns:
        Whether it was queued; False: it is of another model; None: nothing is taken there any more.

    Raises:
        Exception: what the other member raised, or kept the message from arriving.
    """
    answer: bool | None = None
    for each in sent:
        answer = each.result().body
    return answer


class Inbox:
    """A service that puts messages together and delivers those that are complete.

    What a member leaves incomplete when it ends is dropped: nothing of it was looked at.
    """

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._parts: dict[tuple[str, int], dict[int, Buffer]] = {}
        self._heads: dict[tuple[str, int], tuple[Any, int, Future[Reply]]] = {}
        self._ended: set[str] = set()

    def __call__(self, asked: Request) -> Reply | Future[Reply]:
        """Take one piece; the answer to the one that brings the head is that to the message."""
        number, index, count, head = asked.body
        if count == 1:
            return self._deliver(asked.sender, head, asked.buffers)
        place = (asked.sender, number)
        reply: Reply | Future[Reply] = Reply(True)
        with self._lock:
            if asked.sender in self._ended:
                return reply
            parts = self._parts.setdefault(place, {})
            parts[index] = asked.buffers[0]
            if head is not None:
                reply = Future()
                self._heads[place] = (head, count, reply)
            waiting = self._heads.get(place)
            if waiting is None or len(parts) < waiting[1]:
                return reply
            del self._parts[place], self._heads[place]
        head, count, end = waiting
        delivered = self._deliver(asked.sender, head, [parts[each] for each in range(count)])
        if end is reply:
            return delivered
        delivered.add_done_callback(lambda ended: _follow(end, ended))
        return reply

    def lose(self, member: str, reason: str) -> None:
        """Drop what *member* has left incomplete; never blocks."""
        with self._lock:
            self._ended.add(member)
            for place in [each for each in self._parts if each[0] == member]:
                del self._parts[place]
                self._heads.pop(place, None)


def _follow(reply: Future[Reply], ended: Future[Reply]) -> None:
    if (error := ended.exception()) is not None:
        reply.set_exception(error)
    else:
        reply.set_result(ended.result())
