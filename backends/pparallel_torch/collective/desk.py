"""What members ask one another while torch connects them, and tell when they give up."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.runtime.collectives import GroupId
from pparallel.runtime.future import fail, settle
from pparallel.runtime.rpc import Reply, Request, RpcGroup
from pparallel_torch.collective.ends import Ends

_SERVICE = "torch"

Answer = Reply | Future[Reply]


class Desk:
    """One member's end of what the members of a collective and of its groups ask one another.

    It keeps the values of the groups in which this member is the first.
    """

    def __init__(self, group: RpcGroup) -> None:
        self.group = group
        self._lock = threading.Lock()
        self._ends: dict[GroupId, Ends] = {}
        self._given_up: dict[GroupId, BaseException] = {}  # in groups not entered yet
        self._values: defaultdict[GroupId, dict[str, bytes]] = defaultdict(dict)
        self._waiting: dict[tuple[GroupId, str], list[Future[Reply]]] = {}

    def open(self) -> None:
        """Answer from now on."""
        self.group.serve(_SERVICE, self._asked)

    def close(self) -> None:
        """Answer no more."""
        self.group.withdraw(_SERVICE)

    def enter(self, group: GroupId, ends: Ends) -> None:
        """Have *ends* told of those who give up in *group*."""
        with self._lock:
            self._ends[group] = ends
            early = self._given_up.pop(group, None)
        if early is not None:
            ends.end(early)

    def leave(self, group: GroupId) -> None:
        """Forget *group* and its values; whoever waits for one is told."""
        with self._lock:
            self._ends.pop(group, None)
            self._given_up.pop(group, None)
            self._values.pop(group, None)
            keys = [key for key in self._waiting if key[0] == group]
            waiting = [future for key in keys for future in self._waiting.pop(key)]
        for each in waiting:
            fail(each, ClosedError("a group of a collective"))

    def ask(self, to: str, *body: object) -> Future[Reply]:
        """Ask the member *to*, which may be this one."""
        me = self.group.get_cur_name()
        if to != me:
            return self.group.ask_async(to, _SERVICE, body)
        answer = self._asked(Request(me, body, []))
        if isinstance(answer, Future):
            return answer
        done: Future[Reply] = Future()
        done.set_result(answer)
        return done

    def tell(self, group: GroupId, others: Sequence[str], what: str, timeout: float) -> None:
        """Tell *others* that this member has given up *what* in *group*."""
        for each in others:
            with suppress(PeerLostError, ClosedError):  # those know already that it is over
                self.ask(each, "gave up", group, what, timeout)

    # -- inside -------------------------------------------------------------------------------

    def _asked(self, asked: Request) -> Answer:
        kind, group, *rest = asked.body
        if kind == "gave up":
            what, timeout = rest
            who = f"{what} of member {asked.sender!r}, which gave up,"
            self._gave_up(group, CallTimeoutError(who, timeout))
            return Reply()
        return self._about_values(kind, group, *rest)

    def _gave_up(self, group: GroupId, error: BaseException) -> None:
        with self._lock:
            ends = self._ends.get(group)
            if ends is None:
                self._given_up[group] = error
        if ends is not None:
            ends.end(error)

    def _about_values(self, kind: str, group: GroupId, key: str, *rest: Any) -> Answer:
        came: list[Future[Reply]] = []
        with self._lock:
            values = self._values[group]
            match kind:
                case "get":
                    if key not in values:
                        future: Future[Reply] = Future()
                        self._waiting.setdefault((group, key), []).append(future)
                        return future
                    reply = Reply(values[key])
                case "has":
                    reply = Reply(key in values)
                case "delete":
                    reply = Reply(values.pop(key, None) is not None)
                case "add":
                    values[key] = str(int(values.get(key, b"0")) + rest[0]).encode()
                    reply = Reply(int(values[key]))
                    came = self._waiting.pop((group, key), [])
                case "swap":
                    expected, wanted = rest
                    if values.get(key, expected) == expected and (key in values or not expected):
                        values[key] = wanted
                    reply = Reply(values.get(key, expected))
                    came = self._waiting.pop((group, key), [])
                case _:
                    values[key] = rest[0]
                    reply = Reply()
                    came = self._waiting.pop((group, key), [])
            there = values.get(key)
        for each in came:
            settle(each, Reply(there))
        return reply
