"""Where the members of a collective find one another, as threads of one process."""

from __future__ import annotations

import copy
import threading
import uuid
import weakref
from collections.abc import Iterable, Sequence

from pparallel.errors import is_consequence
from pparallel.runtime.collectives import GroupId, Queues, Receive
from pparallel.runtime.member import Member
from pparallel_local.collective.messages import Offer
from pparallel_local.collective.rounds import Layout, Plan, Round


class Place:
    """Where the members of one group meet: their messages, their rounds, and who has left.

    Members are called by their global ranks. Tensors are copied without holding the lock.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = ranks
        self._lock = threading.Lock()
        self._ended: dict[int, BaseException] = {}  # what a member gets that has ended
        self._left: dict[int, BaseException] = {}  # what others get who wait for it
        self._offers: dict[int, Queues[Offer]] = {rank: Queues() for rank in ranks}
        self._receives: dict[int, Queues[Receive]] = {rank: Queues() for rank in ranks}
        self._rounds: dict[object, Round] = {}

    # -- messages -----------------------------------------------------------------------------

    def send(self, offer: Offer, source: int, to: int, tag: int) -> None:
        """Hand *offer* to the member *to*, at once if it is waiting for it."""
        with self._lock:
            self.check(source, [to])
            found = self._receives[to].take(tag, (source, None))
            if found is None:
                self._offers[to].add(tag, source, offer)
        if found is not None:
            found[1].take(offer, source)

    def receive(self, receive: Receive, me: int) -> None:
        """Hand the next message for *receive* to it, now or when it comes."""
        sources = self._sources(me, receive.source)
        with self._lock:
            self.check(me)
            found = self._offers[me].take(receive.tag, sources)
            lost = self._lost(me, receive.source) if found is None else None
            if found is None and lost is None:
                self._receives[me].add(receive.tag, receive.source, receive)
        if found is not None:
            receive.take(found[1], found[0])
        elif lost is not None:
            receive.fail(copy.copy(lost))

    def give_up(self, me: int, receive: Receive, error: BaseException) -> None:
        """Fail *receive* of *me*, unless a message is being copied into it."""
        with self._lock:
            removed = self._receives[me].remove(lambda _, each: each is receive)
        for each in removed:
            each.fail(error)

    # -- rounds -------------------------------------------------------------------------------

    def meet(
        self, key: object, what: str, me: int, layout: Layout, plan: Plan, timeout: float
    ) -> None:
        """Lay out tensors, wait until all members have, and share the work that this makes.

        Args:
            key: which round; the same in all members, and used once.
            what: the operation in words; the same in all members.
            me: this member.
            layout: its tensors.
            plan: what there is to do; that of the last to arrive is used.
            timeout: seconds that the others have to come.
        """
        with self._lock:
            self.check(me, self.ranks)
            current = self._rounds.get(key)
            if current is None:
                current = self._rounds[key] = Round(what, self.ranks, self._lock)
            current.arrive(me, what, layout)
            if len(current.arrived) == len(self.ranks):
                del self._rounds[key]
            last = current.full
            if not last:
                current.wait(timeout, lambda: self._trouble(me, self.ranks))
        current.work(plan if last else None)

    # -- ends ---------------------------------------------------------------------------------

    def check(self, me: int, needed: Iterable[int] = ()) -> None:
        """Raise what *me* gets if it has ended, or if one that it needs has left."""
        trouble = self._trouble(me, needed)
        if trouble is not None:
            raise copy.copy(trouble)

    def end(self, me: int, reason: BaseException, others: BaseException | None = None) -> None:
        """Fail with *reason* what *me* waits for, and what it begins later; the first one counts.

        Args:
            me: the member that ends.
            reason: what it gets.
            others: what those get that wait for it; ``None``: it has not left yet.
        """
        with self._lock:
            reason = self._ended.setdefault(me, reason)
            failed = [(each, reason) for each in self._receives[me].remove(lambda *_: True)]
            if others is not None and me not in self._left:
                # As it ends with the job, so do the others: they may not have been told yet.
                self._left[me] = reason if is_consequence(reason) else others
                self._offers[me] = Queues()
                failed += [lost for rank in self.ranks for lost in self._hopeless(rank)]
            for current in self._rounds.values():
                current.changed.notify_all()
        for each, error in failed:
            each.fail(copy.copy(error))

    def inherit(self, parent: Place) -> None:
        """Know who has ended in *parent*."""
        for rank in self.ranks:
            if rank in parent._ended:
                self.end(rank, parent._ended[rank], parent._left.get(rank))

    @property
    def deserted(self) -> bool:
        """Whether all members have left."""
        return len(self._left) == len(self.ranks)

    def _trouble(self, me: int, needed: Iterable[int]) -> BaseException | None:
        if me in self._ended:
            return self._ended[me]
        return next((self._left[rank] for rank in needed if rank in self._left), None)

    def _sources(self, me: int, source: int | None) -> list[int]:
        return [rank for rank in self.ranks if rank != me] if source is None else [source]

    def _lost(self, me: int, source: int | None) -> BaseException | None:
        """Return why nothing can come to *me* from *source*, or ``None``."""
        sources = self._sources(me, source)
        return self._left[sources[0]] if all(rank in self._left for rank in sources) else None

    def _hopeless(self, me: int) -> list[tuple[Receive, BaseException]]:
        """Take out the receives of *me* to which nothing can come any more."""
        removed = self._receives[me].remove(lambda source, _: self._lost(me, source) is not None)
        return [(each, self._left[self._sources(me, each.source)[0]]) for each in removed]


class Room:
    """Where the members of one collective of a job meet, in groups.

    Args:
        ranks: those of its members.

    Attributes:
        here: the names of the members that have come.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.here: set[str] = set()
        self._lock = threading.Lock()
        self._places: dict[GroupId, Place] = {(): Place(ranks)}

    def place(self, group: GroupId = ()) -> Place:
        """Return the place of *group*, made by whoever comes first."""
        with self._lock:
            found = self._places.get(group)
            if found is None:
                found = self._places[group] = Place(group[-1][0])
                found.inherit(self._places[group[:-1]])
            return found

    def end(
        self, group: GroupId, me: int, reason: BaseException, others: BaseException | None = None
    ) -> None:
        """As :meth:`Place.end`, in *group* and those that were made of it."""
        with self._lock:
            for key, place in list(self._places.items()):
                if key[: len(group)] == group and me in place.ranks:
                    place.end(me, reason, others)
                    if key and place.deserted:
                        del self._places[key]


#: Rooms by the job's address and the name of the group, as long as somebody is in them.
_rooms: weakref.WeakValueDictionary[tuple[str, str], Room] = weakref.WeakValueDictionary()
_rooms_lock = threading.Lock()


def enter(member: Member, group: str, ranks: Sequence[int]) -> Room:
    """Return the room where *member* meets the others of *group*, who have these ranks."""
    address = member.rendezvous or f"alone:{uuid.uuid4().hex}"
    with _rooms_lock:
        return _rooms.setdefault((address, group), Room(ranks))
