"""Local collective: members are threads of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from pparallel.errors import ClosedError, ConfigError, PeerLostError
from pparallel.interfaces.collective import Collective, Operation, Work
from pparallel.runtime.collectives import GroupId, Receive, decoded, encoded
from pparallel_local.collective import place as meeting_place
from pparallel_local.collective.messages import Offer
from pparallel_local.collective.operation import LocalOperation
from pparallel_local.collective.place import Place, Room

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel.interfaces.serializer import Serializer
    from pparallel.runtime.member import Member
    from pparallel.runtime.rpc import RpcGroup
    from pparallel_local.config import LocalCollectiveConfig


class LocalCollective(Collective):
    """Copies tensors between threads, in one copy where the receiver has come first.

    Messages go straight into the receiver's tensor. For the operations on all members' tensors
    these are laid out, and all members share the work on them; so every member waits until the
    others have come.
    """

    def __init__(
        self,
        config: LocalCollectiveConfig,
        *,
        member: Member,
        name: str,
        group: RpcGroup,
        serializer: Serializer,
    ) -> None:
        self._config, self._member, self._name = config, member, name
        self._group, self._serializer = group, serializer
        self._ranks: Sequence[int] = range(member.world_size)
        self._room: Room | None = None
        self._place: Place | None = None
        self._id: GroupId = ()
        self._made: Counter[tuple[int, ...]] = Counter()

    # -- who ----------------------------------------------------------------------------------

    @property
    @override
    def rank(self) -> int:
        return self._member.rank

    @property
    @override
    def ranks(self) -> Sequence[int]:
        return self._ranks

    @override
    def size(self) -> int:
        return len(self._ranks)

    # -- life ---------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        if self._place is not None:
            self._place.check(self.rank)  # a group of some members is open from the start
            return
        self._room = meeting_place.enter(self._member, self._name)
        self._place = self._room.place()
        try:
            self._group.when_closed(self._job_ended)
            self._meet(self._room)
        except BaseException:
            self.close()
            raise

    @override
    def close(self) -> None:
        if self._room is None:
            return
        if not self._id:
            self._group.forget(self._job_ended)
        own = ClosedError(f"the collective {self._name!r} of {self._member.name!r}")
        others = PeerLostError(self._member.name, f"has left the collective {self._name!r}")
        self._room.end(self._id, self.rank, own, others)

    @override
    def new_group(self, ranks: Sequence[int]) -> Self:
        self._opened().check(self.rank)
        members = tuple(self._members(ranks))
        self._made[members] += 1
        made = type(self)(
            self._config,
            member=self._member,
            name=self._name,
            group=self._group,
            serializer=self._serializer,
        )
        assert self._room is not None
        made._ranks, made._room = members, self._room
        made._id = (*self._id, (members, self._made[members]))
        made._place = self._room.place(made._id)
        return made

    def _meet(self, room: Room) -> None:
        names = self._member.names
        room.here.add(self._member.name)
        met = names if len(names) == 1 else self._group.meet("open", self._config.timeout)
        if missing := [name for name in names if name not in met]:
            raise PeerLostError(missing[0], f"left before it opened {self._name!r}")
        if elsewhere := [name for name in names if name not in room.here]:
            message = (
                f"'local' works among threads of one process only, and {elsewhere} are in others;"
                " choose a backend that connects processes"
            )
            raise ConfigError(message, path=f"{self._name}.backend")

    def _job_ended(self, reason: BaseException) -> None:
        assert self._room is not None
        self._room.end((), self.rank, reason)

    def _opened(self) -> Place:
        if self._place is None:
            raise ClosedError(f"the collective {self._name!r}", "is not open")
        return self._place

    # -- messages and operations ----------------------------------------------------------------

    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        place = self._opened()
        self._other(dst)
        offer = Offer(tensor.detach())
        place.send(offer, self.rank, dst, tag)
        return offer

    @override
    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        place = self._opened()
        if src is not None:
            self._other(src)
        elif self.size() == 1:
            message = "there is no other member to receive from"
            raise ValueError(message)
        give_up = partial(place.give_up, self.rank)
        receive = Receive(tensor.detach(), src, tag, self._config.timeout, give_up)
        place.receive(receive, self.rank)
        return receive

    @override
    def operation(self, tag: int) -> Operation:
        me = self._position(self.rank)
        return LocalOperation(self, self._opened(), tag, me, self._config.timeout)

    # -- objects ------------------------------------------------------------------------------

    @override
    def encode_object(self, obj: object) -> bytes:
        return encoded(self._serializer, obj)

    @override
    def decode_object(self, data: bytes) -> Any:
        return decoded(self._serializer, data)
