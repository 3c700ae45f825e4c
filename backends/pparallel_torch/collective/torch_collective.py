"""The base class of the collectives on torch.distributed."""

from __future__ import annotations

import math
import socket
import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from typing_extensions import override

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    ConfigError,
    PeerLostError,
    is_consequence,
)
from pparallel.interfaces.collective import USER_TAGS, Operation, Work
from pparallel.runtime.collectives import ConnectedCollective
from pparallel.runtime.links import ProcessId
from pparallel_torch.collective.checked import CheckedOperation
from pparallel_torch.collective.desk import Desk
from pparallel_torch.collective.ends import Ends
from pparallel_torch.collective.forms import Reductions, reductions
from pparallel_torch.collective.native import NativeGroup
from pparallel_torch.collective.operation import NativeOperation
from pparallel_torch.collective.store import JobStore

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel.interfaces.serializer import Serializer
    from pparallel.runtime.member import Member
    from pparallel.runtime.rpc import RpcGroup
    from pparallel_torch.config import GlooCollectiveConfig, NcclCollectiveConfig

CONNECT = 30.0  #: seconds in which all that have come are to connect
LONGEST = 3e8  #: seconds: time-outs beyond this are more than torch can count

_JOINING = 2 * USER_TAGS  #: a tag that no operation has
_LOOPBACK = "127.0.0.1"


class TorchCollective(ConnectedCollective):
    """Gives each group of members a process group of torch's own for the operations.

    torch's global state is not touched: a program may have its own process groups besides.
    Messages and objects go over the transport of the job, and what a library of torch's cannot do
    stands on messages.

    Attributes:
        device_type: where its tensors are.
        instead: what to do with others.
        has_barrier: whether the library's barrier is one for this process, not for a GPU.
        sees_ends: whether its operations fail when a member that they need disconnects.
        ends: why operations fail.
        position: this member's, in the group.
        count: how many members the group has.
        reductions: what the library can combine.
        last_begun: set once the last operation that was begun to be checked is done.
    """

    device_type: ClassVar[str]
    instead: ClassVar[str]
    has_barrier: ClassVar[bool] = True
    sees_ends: ClassVar[bool] = True
    reductions: ClassVar[Reductions] = reductions(bitwise=True)

    def __init__(
        self,
        config: GlooCollectiveConfig | NcclCollectiveConfig,
        *,
        member: Member,
        name: str,
        group: RpcGroup,
        serializer: Serializer,
    ) -> None:
        super().__init__(config, member=member, name=name, group=group, serializer=serializer)
        self.ends = Ends()
        self.timeout = min(self.config.timeout, LONGEST)
        self.position, self.count = 0, 1
        self._desk: Desk | None = None
        self._native: NativeGroup | None = None
        self._far = False
        self.last_begun = threading.Event()
        self.last_begun.set()

    # -- what a backend adds --------------------------------------------------------------------

    @abstractmethod
    def connect(self, store: JobStore, timeout: float) -> NativeGroup:
        """Return this group's process group, once all members are connected.

        Args:
            store: where they find one another.
            timeout: seconds that connecting may take.
        """

    # -- life -----------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        if self._desk is None:
            self._desk = Desk(self.group)
            self._desk.open()  # before anybody asks
        super().open()

    @override
    def join(self) -> None:
        if self.parent is not None:
            self._desk = self.parent._desk
        assert self._desk is not None
        self.position, self.count = self._position(self.rank), self.size()
        self._desk.enter(self.id, self.ends)
        self._meet_neighbours()
        patience = min(CONNECT, self.timeout)
        store = JobStore(self._desk, self.id, self.names[0], self.ends, patience)
        try:
            self._native = self.connect(store, patience)
        except RuntimeError as error:
            if isinstance(error, ClosedError):
                raise
            self.ends.check_all_here()
            raise CallTimeoutError("the connection of all members", patience) from error
        store.until = math.inf
        if self.ends.over is not None:  # it was ended meanwhile, and nobody else knew of it
            self._native.wake()

    @override
    def close(self) -> None:
        try:
            self._settle()
        finally:
            super().close()

    def _settle(self) -> None:
        """Wait for what goes on beside this member, before the others learn that it leaves.

        Where another thread waits for it already, the close ends it, and wakes that thread.
        """
        for each in self._groups:
            each._settle()
        native = self._native
        if native is not None and not (native.is_waited_for or is_consequence(self.ends.over)):
            native.settle()

    @override
    def leave(self) -> None:
        self.ends.close(ClosedError(f"the collective {self.name!r} of {self.member.name!r}"))
        if self._native is not None:
            self._native.close()
        if self._desk is not None:
            self._desk.leave(self.id)
            if self.parent is None:
                self._desk.close()

    @override
    def member_left(self, rank: int, error: BaseException) -> None:
        if rank != self.rank:
            in_order = isinstance(error, PeerLostError) and error.reason.startswith("has left")
            self.ends.lose(rank, error, seen=in_order and self.sees_ends)
            if self._native is not None:
                self._native.member_left()
            return
        self.ends.end(error)
        if self._native is not None:
            self._native.wake()

    # -- who ------------------------------------------------------------------------------------

    @property
    def others(self) -> list[str]:
        """The names of the group's other members."""
        return [name for name in self.names if name != self.member.name]

    @property
    def own_address(self) -> str:
        """Where the other members of the group reach this one."""
        if not self._far:
            return _LOOPBACK
        found = urlsplit(self.member.rendezvous or "").hostname
        return _facing(found) if found else socket.gethostname()

    def gave_up(self, what: str, timeout: float) -> None:
        """Tell the others that this member has given up an operation."""
        if self._desk is not None:
            self._desk.tell(self.id, self.others, what, timeout)

    def _meet_neighbours(self) -> None:
        """Wait until all members of the group join, and learn who is on another machine."""
        import torch

        here = ProcessId.here().host_id
        mine = torch.frombuffer(bytearray(here), dtype=torch.uint8)
        places = [torch.empty_like(mine) for _ in self.ranks]
        Operation(self, _JOINING, self.ranks, self.position).all_gather(places, mine)
        far = [
            name
            for name, place in zip(self.names, places, strict=True)
            if place.numpy().tobytes() != here
        ]
        self._far = bool(far)
        config: Any = self.config
        if far and not config.allow_insecure:
            message = (
                f"member {far[0]!r} is on another machine than {self.member.name!r} (or in another"
                f" container), and what {config.backend} sends between machines is neither"
                " encrypted nor authenticated: where only trusted machines reach these, say"
                " allow_insecure: true"
            )
            raise ConfigError(message, path=f"{self.name}.allow_insecure")

    # -- operations and messages ----------------------------------------------------------------

    @override
    def operation(self, tag: int) -> Operation:
        if self._native is None or self.ends.over is not None:
            self.check()
            self.ends.check()
        assert self._native is not None
        kind = CheckedOperation if self.config.check else NativeOperation
        return kind(self, self._native, tag)

    @override
    def operation_on_objects(self, tag: int) -> Operation:
        self.check()
        return Operation(self, tag, self.ranks, self.position)

    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        self._accept(tensor, tag)
        return super().isend(tensor, dst, tag)

    @override
    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        self._accept(tensor, tag)
        return super().irecv(tensor, src, tag)

    def refuse(self, tensor: Tensor) -> None:
        """Say why *tensor* cannot be taken.

        Raises:
            ValueError: always.
        """
        message = (
            f"{self.config.backend} takes tensors of the device type {self.device_type!r}, not one"
            f" on {str(tensor.device)!r}: {self.instead}"
        )
        raise ValueError(message)

    def _accept(self, tensor: Tensor, tag: int) -> None:
        if tag < USER_TAGS and tensor.device.type != self.device_type:
            self.refuse(tensor)


def _facing(host: str) -> str:
    """Return the address of this machine that packets to *host* leave from; none is sent."""
    family, kind, _, _, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as asking:
        asking.connect(there)
        return str(asking.getsockname()[0])
