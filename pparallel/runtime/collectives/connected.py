"""A collective whose members are connected by the transport of the job."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from pparallel.interfaces.collective import CollectiveConfig, Work
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.collectives.job_collective import JobCollective
from pparallel.runtime.collectives.mailbox import Mailbox
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup

if TYPE_CHECKING:
    from torch import Tensor


class ConnectedCollective(JobCollective[Mailbox]):
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
        super().__init__(config, member=member, name=name, group=group, serializer=serializer)
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

    # -- life -----------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        if self.carrier is not None:
            self.check()  # a group of some members is open from the start
            return
        timeout = self.config.timeout
        self.carrier = Mailbox(self.group, self.member, self.ranks, self.name, timeout)
        self.carrier.open()
        try:
            self.meet()
            self._enter(self.carrier)
        except BaseException:
            self.close()
            raise

    @override
    def depart(self) -> None:
        if self.carrier is not None:
            self.carrier.depart()

    @override
    def close(self) -> None:
        if (mailbox := self.carrier) is None or not mailbox.leave(self.id):
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
    def begin(self, parent: Self) -> None:
        self.carrier = mailbox = parent.opened()
        parent._groups.append(self)
        try:
            self._enter(mailbox)
        except BaseException:
            self.close()
            raise

    @override
    def check(self) -> None:
        self.opened().check(self.id)

    def _enter(self, mailbox: Mailbox) -> None:
        mailbox.join(self.id, self.member_left)
        self.join()

    # -- messages -------------------------------------------------------------------------------

    @override
    def post(self, tensor: Tensor, dst: int, tag: int) -> Work[None]:
        return self.opened().send(tensor, dst, tag, self.id)

    @override
    def fetch(self, tensor: Tensor, src: int | None, tag: int) -> Work[int]:
        return self.opened().receive(tensor, src, tag, self.id)
