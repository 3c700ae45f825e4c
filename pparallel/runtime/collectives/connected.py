"""A collective whose members are connected by the transport of the job."""

from __future__ import annotations

import itertools
import struct
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.collective import Collective, CollectiveConfig, Work
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.collectives.channels import GroupId
from pparallel.runtime.collectives.mailbox import Mailbox
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup

if TYPE_CHECKING:
    from torch import Tensor


class ConnectedCollective(Collective):
    """Sends messages and objects by the transport; the operations are what a backend adds.

    A backend fills in :meth:`join` and :meth:`leave`, overrides :meth:`operation`, and what else
    it does better. Without that all operations stand on messages.
    """

    def __init__(
        self,
        config: CollectiveConfig,
        *,
        member: Member,
        name: str,
        group: RpcGroup,
        serializer: Serializer,
    ) -> None:
        self.config, self.member, self.name = config, member, name
        self.group, self.serializer = group, serializer
        self.id: GroupId = ()
        self.parent: Self | None = None  # the group that this one was made of
        self._ranks: Sequence[int] = range(member.world_size)
        self._mailbox: Mailbox | None = None
        self._made: Counter[tuple[int, ...]] = Counter()
        self._groups: list[Self] = []  # those made of this one, and not closed

    # -- what a backend adds --------------------------------------------------------------------

    @abstractmethod
    def join(self) -> None:
        """Set up what the operations of this group need; all its members call this.

        Messages can be sent and received already.
        """

    @abstractmethod
    def leave(self) -> None:
        """Give back what :meth:`join` set up, which may have failed; called once.

        The groups made of this one have left before.
        """

    @abstractmethod
    def member_left(self, rank: int, error: BaseException) -> None:
        """Wake the operations that wait for *rank* with *error*; never blocks.

        *rank* is this member's own when the job ends. May be called during :meth:`join`, by any
        thread, and more than once.
        """

    # -- who ------------------------------------------------------------------------------------

    @property
    @override
    def rank(self) -> int:
        return self.member.rank

    @property
    @override
    def ranks(self) -> Sequence[int]:
        return self._ranks

    @override
    def size(self) -> int:
        return len(self._ranks)

    @property
    def names(self) -> list[str]:
        """The names of the group's members, by position."""
        return [self.member.names[rank] for rank in self._ranks]

    # -- life -----------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        if self._mailbox is not None:
            self.check()  # a group of some members is open from the start
            return
        timeout = self.config.timeout
        self._mailbox = mailbox = Mailbox(self.group, self.member, self.name, timeout)
        mailbox.open()
        try:
            self._meet()
            self._begin(mailbox)
        except BaseException:
            self.close()
            raise

    @override
    def close(self) -> None:
        if (mailbox := self._mailbox) is None or not mailbox.leave(self.id):
            return
        try:
            for each in list(self._groups):
                each.close()
            self.leave()
        finally:
            if self.parent is None:
                mailbox.close()
            elif self in self.parent._groups:
                self.parent._groups.remove(self)

    @override
    def new_group(self, ranks: Sequence[int]) -> Self:
        mailbox = self._opened()
        mailbox.check(self.id)
        members = tuple(self._members(ranks))
        self._made[members] += 1
        made = type(self)(
            self.config,
            member=self.member,
            name=self.name,
            group=self.group,
            serializer=self.serializer,
        )
        made._ranks, made._mailbox, made.parent = members, mailbox, self
        made.id = (*self.id, (members, self._made[members]))
        self._groups.append(made)
        try:
            made._begin(mailbox)
        except BaseException:
            made.close()
            raise
        return made

    def check(self) -> None:
        """Raise what a use of the group is told if it has ended.

        Raises:
            ClosedError: it is not open, or is closed.
        """
        self._opened().check(self.id)

    def _begin(self, mailbox: Mailbox) -> None:
        mailbox.join(self.id, self.member_left)
        self.join()

    def _meet(self) -> None:
        names = self.member.names
        met = names if len(names) == 1 else self.group.meet("open", self.config.timeout)
        if missing := [name for name in names if name not in met]:
            raise PeerLostError(missing[0], f"left before it opened {self.name!r}")

    def _opened(self) -> Mailbox:
        if self._mailbox is None:
            raise ClosedError(f"the collective {self.name!r}", "is not open")
        return self._mailbox

    # -- messages -------------------------------------------------------------------------------

    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        mailbox = self._opened()
        self._other(dst)
        return mailbox.send(tensor.detach(), dst, tag, self.id)

    @override
    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        mailbox = self._opened()
        if src is not None:
            self._other(src)
        elif self.size() == 1:
            message = "there is no other member to receive from"
            raise ValueError(message)
        return mailbox.receive(tensor.detach(), src, tag, self.id)

    # -- objects ------------------------------------------------------------------------------

    @override
    def encode_object(self, obj: object) -> bytes:
        return encoded(self.serializer, obj)

    @override
    def decode_object(self, data: bytes) -> Any:
        return decoded(self.serializer, data)


def encoded(serializer: Serializer, obj: object) -> bytes:
    """Return *obj* as bytes: how many buffers the serializer makes of it, their lengths, and they.

    Raises:
        SerializationError: it cannot be serialised.
    """
    buffers = serializer.dumps(obj)
    lengths = [memoryview(each).nbytes for each in buffers]
    return b"".join([struct.pack(f"<{len(lengths) + 1}Q", len(lengths), *lengths), *buffers])


def decoded(serializer: Serializer, data: bytes) -> Any:
    """Return the object that :func:`encoded` made bytes of.

    Raises:
        SerializationError: it cannot be rebuilt.
    """
    (count,) = struct.unpack_from("<Q", data)
    lengths = struct.unpack_from(f"<{count}Q", data, 8)
    ends = list(itertools.accumulate(lengths, initial=8 * (count + 1)))
    return serializer.loads([bytearray(data[start:end]) for start, end in itertools.pairwise(ends)])
