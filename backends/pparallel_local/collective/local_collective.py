"""Local collective: members are threads of one process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from pparallel.errors import ClosedError, ConfigError, PeerLostError
from pparallel.interfaces.collective import Operation, Work
from pparallel.runtime.collectives import JobCollective, Receive
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


class LocalCollective(JobCollective[Place]):
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
        super().__init__(config, member=member, name=name, group=group, serializer=serializer)
        self._room: Room | None = None

    # -- life ---------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        if self.carrier is not None:
            self.check()  # a group of some members is open from the start
            return
        self._room = room = meeting_place.enter(
            self.member, self.group.get_group_name(), self.ranks
        )
        self.carrier = room.place()
        try:
            self.group.when_closed(self._job_ended)
            room.here.add(self.member.name)
            self.meet()
            self._check_all_are_in(room)
        except BaseException:
            self.close()
            raise

    @override
    def close(self) -> None:
        if self._room is None:
            return
        if self.parent is None:
            self.group.forget(self._job_ended)
        own = ClosedError(f"the collective {self.name!r} of {self.member.name!r}")
        others = PeerLostError(self.member.name, f"has left the collective {self.name!r}")
        self._room.end(self.id, self.rank, own, others)

    @override
    def begin(self, parent: Self) -> None:
        self._room = parent._room
        assert self._room is not None
        self.carrier = self._room.place(self.id)

    @override
    def check(self) -> None:
        self.opened().check(self.rank)

    def _check_all_are_in(self, room: Room) -> None:
        if elsewhere := [name for name in self.names if name not in room.here]:
            message = (
                f"'local' works among threads of one process only, and {elsewhere} are in others;"
                " choose a backend that connects processes"
            )
            raise ConfigError(message, path=f"{self.name}.backend")

    def _job_ended(self, reason: BaseException) -> None:
        assert self._room is not None
        self._room.end((), self.rank, reason)

    # -- messages and operations ----------------------------------------------------------------

    @override
    def post(self, tensor: Tensor, dst: int, tag: int) -> Work[None]:
        offer = Offer(tensor)
        self.opened().send(offer, self.rank, dst, tag)
        return offer

    @override
    def fetch(self, tensor: Tensor, src: int | None, tag: int) -> Work[int]:
        place = self.opened()
        give_up = partial(place.give_up, self.rank)
        receive = Receive(tensor, src, tag, self.config.timeout, give_up)
        place.receive(receive, self.rank)
        return receive

    @override
    def operation(self, tag: int) -> Operation:
        me = self._position(self.rank)
        return LocalOperation(self, self.opened(), tag, me, self.config.timeout)
