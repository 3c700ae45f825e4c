"""Names, groups and meetings, kept by the first member for all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pparallel.errors import DirectoryError, PeerLostError
from pparallel.runtime.future import LeanFuture, fail, settle
from pparallel.runtime.rpc.service import Reply, Request, Service

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint

CLAIM, YIELD, FIND = "directory.claim", "directory.yield", "directory.find"
ENTER, LEAVE = "group.enter", "group.leave"
MEET, WITHDRAW, ENDED = "meet", "meet.withdraw", "meet.ended"

WORLD = "world"  #: the group of all members
DONE = "leaving/done"  #: where members meet whose programs have ended

Name = tuple[str, str, str]  # group, kind ("pair" or "service"), key


class Entry(NamedTuple):
    """Who holds a name, and what it was claimed with: for a paired value the reference to it."""

    owner: str
    ref_id: str


class _Meeting:
    """Members that wait for one another; each may have several threads waiting."""

    def __init__(self, members: list[str], strict: bool, host: str) -> None:
        # Where they meet is woken last: it may be about to leave, and the others' answers with it.
        self.members = sorted(members, key=host.__eq__)
        self.answer = members
        self.strict = strict  # a lost member is an error, not an absence
        self.waiting: dict[str, deque[tuple[str, Future[Reply]]]] = {}

    def arrive(self, member: str, ticket: str) -> Future[Reply]:
        future: Future[Reply] = LeanFuture()
        self.waiting.setdefault(member, deque()).append((ticket, future))
        return future

    def withdraw(self, member: str, ticket: str) -> None:
        places = self.waiting.get(member, ())
        self.waiting[member] = deque(each for each in places if each[0] != ticket)

    def complete(self, lost: dict[str, str]) -> list[Callable[[], None]]:
        """Return what wakes those whom nothing keeps waiting, to be called without the lock."""
        gone = [member for member in self.members if member in lost]
        wake: list[Callable[[], None]] = []
        if self.strict and gone:
            why = gone[0], lost[gone[0]]
            for places in self.waiting.values():
                wake += [partial(fail, future, PeerLostError(*why)) for _, future in places]
            self.waiting.clear()
            return wake
        present = [member for member in self.members if member not in lost]
        answer = [member for member in self.answer if member not in lost]
        while present and all(map(self.waiting.get, present)):
            for member in present:
                wake.append(partial(settle, self.waiting[member].popleft()[1], Reply(answer)))
        return wake


class Directory:
    """Answers the services above; every entry ends with the member that holds it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._lock = threading.RLock()
        self._host = endpoint.name
        self._names: dict[Name, Entry] = {}
        self._groups: dict[str, tuple[list[str], set[str]]] = {}  # members, those still inside
        self._meetings: dict[tuple[str, ...], _Meeting] = {}
        self._lost: dict[str, str] = {}
        services: dict[str, Service] = {
            CLAIM: self._claim,
            YIELD: self._yield,
            FIND: self._find,
            ENTER: self._enter,
            LEAVE: self._leave,
            MEET: self._meet,
            WITHDRAW: self._withdraw,
            ENDED: self._ended,
        }
        for key, service in services.items():
            endpoint.serve(key, service)

    def lose(self, member: str, reason: str) -> None:
        """End what *member* held, and the waiting for it."""
        with self._lock:
            self._lost[member] = reason
            names = self._names.items()
            self._names = {name: entry for name, entry in names if entry.owner != member}
            for group, (_, inside) in list(self._groups.items()):
                if member in inside:
                    self._go(group, member)
            meetings = list(self._meetings.values())
            wake = [each for meeting in meetings for each in meeting.complete(self._lost)]
        for each in wake:
            each()

    def _claim(self, request: Request) -> Reply:
        name, ref_id = request.body
        with self._lock:
            if request.sender in self._lost:
                raise PeerLostError(request.sender, self._lost[request.sender])
            entry = Entry(request.sender, ref_id)
            if (taken := self._names.setdefault(name, entry)) is not entry:
                group, kind, key = name
                verb = "paired to" if kind == "pair" else "registered in"
                message = f"{key!r} is already {verb} Group [{group}] by member {taken.owner!r}"
                raise DirectoryError(message)
        return Reply()

    def _yield(self, request: Request) -> Reply:
        """Give up a name; the answer is the reference that was kept under it."""
        group, kind, key, ref_id = request.body  # whatever was claimed with, if that is None
        name = group, kind, key
        with self._lock:
            entry = self._names.get(name)
            if entry is None or entry.owner != request.sender or ref_id not in (None, entry.ref_id):
                verb = "paired to" if kind == "pair" else "registered in"
                whose = f" by {request.sender!r}, but by {entry.owner!r}" if entry else ""
                raise DirectoryError(f"{key!r} is not {verb} Group [{group}]{whose}")
            del self._names[name]
        return Reply(entry.ref_id)

    def _find(self, request: Request) -> Reply:
        with self._lock:
            entry = self._names.get(request.body)
        return Reply(None if entry is None else tuple(entry))

    def _enter(self, request: Request) -> Future[Reply]:
        name, members, ticket = request.body
        with self._lock:
            known, inside = self._groups.setdefault(name, (members, set()))
            if known != members:
                message = f"group {name!r} was entered with members {known}, not {members}"
                raise ValueError(message)
            if request.sender in inside:
                raise ValueError(f"group {name!r} was entered by {request.sender!r} already")
            inside.add(request.sender)
        return self._wait_at((name, "enter"), members, True, request.sender, ticket)

    def _leave(self, request: Request) -> Reply:
        """End what the sender has in a group; the answer is the references that were kept there."""
        with self._lock:
            self._go(request.body, request.sender)
            own = [
                name
                for name, entry in self._names.items()
                if name[0] == request.body and entry.owner == request.sender
            ]
            entries = [(name[1], self._names.pop(name)) for name in own]
        return Reply([entry.ref_id for kind, entry in entries if kind == "pair"])

    def _go(self, group: str, member: str) -> None:
        if group in self._groups:
            inside = self._groups[group][1]
            inside.discard(member)
            if meeting := self._meetings.get((group, "enter")):
                meeting.waiting.pop(member, None)  # its entry counts no longer
            if not inside:
                del self._groups[group]
                meetings = self._meetings.items()
                self._meetings = {key: each for key, each in meetings if key[0] != group}

    def _meet(self, request: Request) -> Future[Reply]:
        key, members, strict, ticket = request.body
        return self._wait_at(tuple(key), members, strict, request.sender, ticket)

    def _withdraw(self, request: Request) -> Reply:
        """Wait there no longer; the answer is the members that have not come."""
        key, ticket = request.body
        with self._lock:
            if not (meeting := self._meetings.get(tuple(key))):
                return Reply([])
            missing = [each for each in meeting.answer if not meeting.waiting.get(each)]
            meeting.withdraw(request.sender, ticket)
            self._end_if_empty(tuple(key), meeting)
        return Reply([each for each in missing if each not in self._lost])

    def _ended(self, request: Request) -> Reply:
        """Return the members whose programs have ended, but for those that wait at a place."""
        with self._lock:
            places = (WORLD, f"meet/{DONE}"), request.body
            done, there = (
                {} if meeting is None else meeting.waiting
                for meeting in map(self._meetings.get, places)
            )
            return Reply([name for name, waits in done.items() if waits and not there.get(name)])

    def _wait_at(
        self, key: tuple[str, ...], members: list[str], strict: bool, member: str, ticket: str
    ) -> Future[Reply]:
        with self._lock:
            meeting = self._meetings.get(key)
            if meeting is None:
                meeting = self._meetings[key] = _Meeting(members, strict, self._host)
            future = meeting.arrive(member, ticket)
            wake = meeting.complete(self._lost)
            self._end_if_empty(key, meeting)
        for each in wake:
            each()
        return future

    def _end_if_empty(self, key: tuple[str, ...], meeting: _Meeting) -> None:
        if not any(meeting.waiting.values()):
            self._meetings.pop(key, None)
