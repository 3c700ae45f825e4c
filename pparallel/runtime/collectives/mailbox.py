"""The messages of one member: tensors that travel with the remote calls of the job."""

from __future__ import annotations

import copy
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import Buffer

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.collective import Work
from pparallel.runtime.collectives.channels import Channel, Failed, GroupId, family
from pparallel.runtime.collectives.matching import Receive, finish
from pparallel.runtime.collectives.messages import Came, Sent, copied
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import Reply, Request, RpcGroup

if TYPE_CHECKING:
    from torch import Tensor

_SERVICE = "message"
# Instead of a dtype:
_LEFT = ""  #: its sender has left the group
_NOTHING = "-"  #: what was to have this number was not sent

_PATIENCE = 1.0  #: seconds that the others have to hear that this member has left

#: Called with a member's rank and what whoever waits for it is told, when it has left a group; with
#: this member's own rank when the job ends.
Watcher = Callable[[int, BaseException], None]


class Mailbox:
    """The messages of one member in a collective, and in all groups that are made of it.

    A message is copied where it is sent, into memory that the receiver sees where members share
    memory; it is copied once more into the receiver's tensor, by whichever comes second, the
    message or its receive. Messages between two members are numbered, so that they keep their
    order on transports that do not.

    Args:
        group: where they travel.
        member: this member.
        ranks: the ranks of the group's members.
        what: the collective, in words.
        timeout: seconds that a receive waits.
    """

    def __init__(
        self, group: RpcGroup, member: Member, ranks: Sequence[int], what: str, timeout: float
    ) -> None:
        self._group, self._member, self._ranks = group, member, ranks
        self._what, self._timeout = what, timeout
        self._lock = threading.Lock()
        self._channels: dict[GroupId, Channel] = {}
        self._gone: dict[int, BaseException] = {}  # members that have ended
        # A member makes the groups of one parent and one set of ranks in the order of their
        # numbers: what comes for another than those that are open, or those to come, is too late.
        self._open: set[GroupId] = {()}
        self._made: dict[tuple[GroupId, tuple[int, ...]], int] = {}
        self._numbers: Counter[int] = Counter()
        self._next: Counter[int] = Counter()
        self._early: defaultdict[int, dict[int, Request]] = defaultdict(dict)
        self._watchers: dict[GroupId, Watcher] = {}
        self._departed = False
        self._farewells: set[Future[Reply]] = set()  # on their way

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Take messages from now on."""
        self._group.serve(_SERVICE, self._arrived)
        self._group.when_lost(self._lost)
        self._group.when_closed(self._job_ended)

    def depart(self) -> None:
        """Take note that this member is done, and leaves when all are: nobody has to be told.

        A member that others still wait for then, because it did not wait for them, they lose with
        its runtime.
        """
        self._departed = True

    def close(self) -> None:
        """Take none any more, and forget all.

        Whoever is being told that this member has left may not be connected with it yet, and takes
        it for a stranger if both close meanwhile: so this waits until they have heard.
        """
        wait(list(self._farewells), _PATIENCE)
        self._group.forget(self._lost)
        self._group.forget(self._job_ended)

    def join(self, group: GroupId, watcher: Watcher) -> None:
        """Be in *group* from now on; *watcher* is called for each other member that leaves it."""
        with self._lock:
            self._open.add(group)
            if group:
                ranks, number = group[-1]
                self._made[group[:-1], ranks] = number
            channel = self._channel(group)
            self._watchers[group] = watcher
            left = dict(channel.left)
        for rank, error in left.items():
            watcher(rank, error)

    def leave(self, group: GroupId) -> bool:
        """End *group* for this member, and those made of it; tell the others, unless all are done.

        Returns:
            Whether this member had not left before.
        """
        with self._lock:
            if group not in self._open:
                return False
            if group and group not in self._channels:  # its parent had ended before it began
                self._forget(group)
                return True
            channel = self._channel(group)
            failed = self._end(group, self._own_end())
            self._forget(group)
            others = [
                each
                for each in channel.ranks
                if not (self._departed or each == self._member.rank or each in channel.left)
            ]
            sent = [(each, self._number(each)) for each in others]
        _fail(failed)
        for rank, number in sent:
            told = self._post(rank, (number, group, 0, _LEFT, ()), ())
            if told is not None:
                self._farewells.add(told)
                told.add_done_callback(self._farewells.discard)
        return True

    def check(self, group: GroupId, needed: Sequence[int] = ()) -> None:
        """Raise what a use of *group* is told if it has ended, or if one of *needed* has left."""
        with self._lock:
            self._channel(group).check(needed)

    # -- messages -----------------------------------------------------------------------------

    def send(self, tensor: Tensor, to: int, tag: int, group: GroupId) -> Work[None]:
        """Copy *tensor* and send it; nobody is waited for.

        Raises:
            PeerLostError: *to* has left.
            ClosedError: this member has.
        """
        self.check(group, [to])
        finish(tensor)
        memory = copied(tensor, self._group)
        dtype = str(tensor.dtype).removeprefix("torch.")
        with self._lock:
            number = self._number(to)
        try:
            self._post(to, (number, group, tag, dtype, tuple(tensor.shape)), memory)
        except BaseException:  # too large, or interrupted: what comes after it must not wait for it
            self._post(to, (number, group, tag, _NOTHING, ()), ())
            raise
        return Sent()

    def receive(self, tensor: Tensor, source: int | None, tag: int, group: GroupId) -> Work[int]:
        """Fill *tensor* with the next message of *tag* from *source*, or from anyone."""
        give_up = partial(self._give_up, group)
        receive = Receive(tensor, source, tag, self._timeout, give_up)
        try:
            with self._lock:
                found = self._channel(group).want(receive)
        except PeerLostError as error:
            receive.fail(error)
            return receive
        if found is not None:
            receive.take(found[1], found[0])
        return receive

    # -- inside -------------------------------------------------------------------------------

    def _own_end(self) -> ClosedError:
        return ClosedError(f"the collective {self._what!r} of {self._member.name!r}")

    def _forget(self, group: GroupId) -> None:
        """Keep nothing of *group*, which this member has left, nor of groups that it never made.

        The groups made of it that are still open follow when they are left themselves. The channel
        of all members stays: it says why all have ended.
        """
        self._open.discard(group)
        depth = len(group)
        for key in [key for key in self._channels if key[:depth] == group]:
            if key and key not in self._open:
                del self._channels[key]
        for parent, ranks in [each for each in self._made if each[0][:depth] == group]:
            if parent not in self._open:
                del self._made[parent, ranks]

    def _is_over(self, group: GroupId) -> bool:
        """Return whether this member has left *group*, or one that it would be made of."""
        for depth in range(len(group), 0, -1):
            if group[:depth] in self._open:
                return False
            ranks, number = group[depth - 1]
            if number <= self._made.get((group[: depth - 1], ranks), 0):
                return True
        return () not in self._open

    def _channel(self, group: GroupId) -> Channel:
        """Return the channel of *group*, made by whoever comes first: this member or a message.

        Raises:
            BaseException: this member has left it.
        """
        found = self._channels.get(group)
        if found is None:
            if group and self._is_over(group):
                raise copy.copy(self._channel(()).ended or self._own_end())
            ranks = group[-1][0] if group else self._ranks
            found = self._channels[group] = Channel(ranks, self._member.rank)
            for rank, error in self._gone.items():
                found.lose(rank, error)
            if group:
                parent = self._channel(group[:-1])
                found.ended = parent.ended
                for rank, error in parent.left.items():
                    found.lose(rank, error)
        return found

    def _number(self, to: int) -> int:
        self._numbers[to] += 1
        return self._numbers[to]

    def _post(
        self, to: int, body: tuple[object, ...], memory: Sequence[Buffer]
    ) -> Future[Reply] | None:
        try:
            return self._group.ask_async(self._member.names[to], _SERVICE, body, memory)
        except (PeerLostError, ClosedError):
            # It has ended, or this member: whoever waits is told by what tells of that.
            return None

    def _arrived(self, asked: Request) -> Reply:
        source = self._member.names.index(asked.sender)
        with self._lock:
            early = self._early[source]
            early[asked.body[0]] = asked
            taken: list[tuple[Receive, Came]] = []
            failed: list[Failed] = []
            told: list[tuple[Watcher, BaseException]] = []
            while (each := early.pop(self._next[source] + 1, None)) is not None:
                self._next[source] += 1
                self._take(source, each.body, each.buffers, taken, failed, told)
        for receive, message in taken:
            receive.take(message, source)
        _fail(failed)
        for watcher, error in told:
            watcher(source, error)
        return Reply()

    def _take(
        self,
        source: int,
        body: Any,
        buffers: Sequence[Buffer],
        taken: list[tuple[Receive, Came]],
        failed: list[Failed],
        told: list[tuple[Watcher, BaseException]],
    ) -> None:
        _, group, tag, dtype, shape = body
        if group not in self._channels and self._is_over(group):
            return  # sent before its sender knew that this member has left
        channel = self._channel(group)
        if dtype == _LEFT:
            why = f"has left the collective {self._what!r}"
            error = PeerLostError(self._member.names[source], why)
            failed += self._lose(group, source, error)
            told += [(each, error) for each in self._watching(group, source)]
            return
        if dtype == _NOTHING:
            return
        message = Came(dtype, tuple(shape), memoryview(buffers[0]) if buffers else None)
        receive = channel.come(message, source, tag)
        if receive is not None:
            taken.append((receive, message))

    def _watching(self, group: GroupId, rank: int) -> list[Watcher]:
        return [
            watcher
            for key, watcher in self._watchers.items()
            if key[: len(group)] == group and rank in self._channels[key].ranks
        ]

    def _lose(self, group: GroupId, rank: int, error: BaseException) -> list[Failed]:
        return [
            each for channel in family(self._channels, group) for each in channel.lose(rank, error)
        ]

    def _end(self, group: GroupId, reason: BaseException) -> list[Failed]:
        found = [each for channel in family(self._channels, group) for each in channel.end(reason)]
        for key in [key for key in self._watchers if key[: len(group)] == group]:
            del self._watchers[key]
        return found

    def _lost(self, name: str, reason: str) -> None:
        rank, error = self._member.names.index(name), PeerLostError(name, reason)
        with self._lock:
            self._gone.setdefault(rank, error)
            failed = self._lose((), rank, error)
            watchers = self._watching((), rank)
        _fail(failed)
        for watcher in watchers:
            watcher(rank, error)

    def _job_ended(self, reason: BaseException) -> None:
        with self._lock:
            self._channel(())
            watchers = list(self._watchers.values())
            failed = self._end((), reason)
        _fail(failed)
        for watcher in watchers:
            watcher(self._member.rank, reason)

    def _give_up(self, group: GroupId, receive: Receive, error: BaseException) -> None:
        with self._lock:
            channel = self._channels.get(group)
            waited = channel is not None and channel.give_up(receive)
        if waited:
            receive.fail(error)


def _fail(failed: Sequence[Failed]) -> None:
    for receive, error in failed:
        receive.fail(error)
