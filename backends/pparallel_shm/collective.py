"""The collective ``shm``: members of one machine do their operations in memory that they share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import ClosedError, PparallelError
from pparallel.interfaces.collective import USER_TAGS, Operation, Work
from pparallel.runtime.collectives import ConnectedCollective
from pparallel_shm.line import Line
from pparallel_shm.lone import LoneOperation
from pparallel_shm.meeting import Meeting
from pparallel_shm.operation import ShmOperation
from pparallel_shm.place import Place

if TYPE_CHECKING:
    from pparallel.interfaces.serializer import Serializer
    from pparallel.runtime.member import Member
    from pparallel.runtime.rpc import RpcGroup
    from pparallel_shm.config import ShmCollectiveConfig

_SETUP = USER_TAGS  #: the tag of what members tell one another first; that of no operation


class ShmCollective(ConnectedCollective):
    """Members are processes of one machine, or threads; messages go by the job's transport.

    Operations of one group are done one at a time, in the order begun: those begun with
    ``async_op`` by a thread of their own, and so is what is begun behind them.
    """

    def __init__(
        self,
        config: ShmCollectiveConfig,
        *,
        member: Member,
        name: str,
        group: RpcGroup,
        serializer: Serializer,
    ) -> None:
        super().__init__(config, member=member, name=name, group=group, serializer=serializer)
        self._slot = config.slot
        self._left: dict[int, BaseException] = {}
        self._place: Place | None = None
        self._line = Line()

    @property
    @override
    def straight(self) -> bool:
        return True

    @override
    def join(self) -> None:
        if self.size() == 1:
            return
        me = self._position(self.rank)
        messages = Operation(self, _SETUP, self.ranks, me)
        memory = Meeting(messages, me, self.names, self.name).share(self._slot)
        timeout = self.config.timeout
        place = Place(memory, me, self.ranks, self.names, self.name, timeout, self._left)
        self._place = place
        if (error := self._left.get(self.rank)) is not None:
            place.rounds.end(error)

    @override
    def leave(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.rounds.end(ClosedError(f"the collective {self.name!r} of {self.member.name!r}"))
        self._line.end()

    @override
    def member_left(self, rank: int, error: BaseException) -> None:
        self._left.setdefault(rank, error)
        if (place := self._place) is None:
            return
        if rank == self.rank:
            place.rounds.end(error)
        else:
            place.rounds.wake()

    @override
    def operation(self, tag: int) -> Operation:
        place = self._place
        if place is not None:
            place.rounds.check()
            return ShmOperation(self, place, tag)
        self.check()
        return LoneOperation(self, tag, self.ranks, 0)

    @override
    def carry_out(
        self,
        operation: Operation,
        run: Callable[[Operation], None],
        then: Callable[[], None] | None = None,
        *,
        async_op: bool = False,
    ) -> Work[None] | None:
        place, line = self._place, self._line
        if async_op:
            return line.add(partial(_carry_out, place, operation, run, then))
        try:
            if line.enter(operation):  # inside, for an interrupt may come right behind it
                _carry_out(place, operation, run, then)
                return None
        finally:
            line.leave(operation)
        line.add(partial(_carry_out, place, operation, run, then)).wait()
        return None


def _carry_out(
    place: Place | None,
    operation: Operation,
    run: Callable[[Operation], None],
    then: Callable[[], None] | None,
) -> None:
    """Do an operation whose turn it is, and what is left to do then."""
    if place is None:
        run(operation)
    else:
        count = place.threads.lower()
        try:
            run(operation)
        except (ValueError, PparallelError):
            raise
        except BaseException as error:
            # It may not have begun here; for the others it has.
            place.give_up(error)
            raise
        finally:
            place.threads.restore(count)
    if then is not None:
        then()
