"""What the collectives of a job have in common: members, groups made of them, and objects."""

from __future__ import annotations

import itertools
import struct
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from typing_extensions import override

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.collective import Collective, CollectiveConfig, Work
from pparallel.interfaces.collective.messages import validated, validated_output
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.collectives.channels import GroupId
from pparallel.runtime.collectives.matching import validate_device
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup

if TYPE_CHECKING:
    from torch import Tensor

C = TypeVar("C")


class JobCollective(Collective, Generic[C]):
    """Knows its members and makes groups of them; objects go through the job's serializer.

    Its members are those of the group of calls that it is built with: all of the job, or some.

    A backend fills in what opens and closes it, :meth:`begin`, :meth:`check`, and how a message is
    sent and received: :meth:`post` and :meth:`fetch`.

    Attributes:
        config: what it is told.
        member: this member.
        name: the component's.
        group: its members.
        serializer: turns objects into bytes.
        id: which group of the job's members it is.
        parent: the group that it was made of, if it was.
        carrier: what its messages go through; None before it is open.
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
        self.parent: Self | None = None
        self.carrier: C | None = None
        names = group.get_group_members()
        self._ranks: Sequence[int] = sorted(member.names.index(name) for name in names)
        self._made: Counter[tuple[int, ...]] = Counter()

    # -- what a backend adds --------------------------------------------------------------------

    @abstractmethod
    def begin(self, parent: Self) -> None:
        """Be open, as a group that was made of *parent*."""

    @abstractmethod
    def check(self) -> None:
        """Raise what a use of the group is told if it has ended.

        Raises:
            ClosedError: it is not open, or is closed.
        """

    @abstractmethod
    def post(self, tensor: Tensor, dst: int, tag: int) -> Work[None]:
        """Send *tensor*, which is detached, to *dst*, another member."""

    @abstractmethod
    def fetch(self, tensor: Tensor, src: int | None, tag: int) -> Work[int]:
        """Receive into *tensor*, which is detached, from *src*, another member, or from anyone."""

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

    def opened(self) -> C:
        """Return what messages go through.

        Raises:
            ClosedError: it is not open.
        """
        if self.carrier is None:
            raise ClosedError(f"the collective {self.name!r}", "is not open")
        return self.carrier

    def meet(self) -> None:
        """Wait until all members open it.

        Raises:
            PeerLostError: one ended before.
            CallTimeoutError: one did not come in time.
        """
        names = self.names
        met = names if len(names) == 1 else self.group.meet("open", self.config.timeout)
        if missing := [name for name in names if name not in met]:
            raise PeerLostError(missing[0], f"left before it opened {self.name!r}")

    @override
    def new_group(self, ranks: Sequence[int]) -> Self:
        self.check()
        members = tuple(self._members(ranks))
        self._made[members] += 1
        made = type(self)(
            self.config,
            member=self.member,
            name=self.name,
            group=self.group,
            serializer=self.serializer,
        )
        made._ranks, made.parent = members, self
        made.id = (*self.id, (members, self._made[members]))
        made.begin(self)
        return made

    # -- messages -------------------------------------------------------------------------------

    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        self.opened()
        self._other(dst)
        validate_device(tensor)
        return self.post(validated(tensor), dst, tag)

    @override
    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        self.opened()
        if src is not None:
            self._other(src)
        elif self.size() == 1:
            message = "there is no other member to receive from"
            raise ValueError(message)
        validate_device(tensor)
        return self.fetch(validated_output(tensor), src, tag)

    # -- objects --------------------------------------------------------------------------------

    @override
    def encode_object(self, obj: object) -> bytes:
        """Return how many buffers the serializer makes of *obj*, their lengths, and they."""
        buffers = self.serializer.dumps(obj)
        lengths = [memoryview(each).nbytes for each in buffers]
        return b"".join([struct.pack(f"<{len(lengths) + 1}Q", len(lengths), *lengths), *buffers])

    @override
    def decode_object(self, data: bytes) -> Any:
        (count,) = struct.unpack_from("<Q", data)
        lengths = struct.unpack_from(f"<{count}Q", data, 8)
        ends = list(itertools.accumulate(lengths, initial=8 * (count + 1)))
        parts = [bytearray(data[start:end]) for start, end in itertools.pairwise(ends)]
        return self.serializer.loads(parts)
