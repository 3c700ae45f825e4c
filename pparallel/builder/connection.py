"""How one member reaches the others: its endpoint, and the groups that it is in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup
from pparallel.runtime.rpc.directory import WORLD
from pparallel.runtime.rpc.endpoint import Endpoint
from pparallel.runtime.rpc.group import enter

if TYPE_CHECKING:
    from pparallel.config import BackendConfig
    from pparallel.interfaces.transport import TransportConfig


class Connection:
    """The endpoint of one member, which is opened when it is first needed, and its groups.

    Args:
        member: which it is.
        component: returns the component of a name, made if need be.
        config: returns its config.
        when_ended: called with the reason when the endpoint ends.
        when_lost: called with the name and the end of each member that ends.

    Attributes:
        made: the endpoint, if there is one yet; it may not be open.
        is_open: whether it has been opened.
    """

    def __init__(
        self,
        member: Member,
        component: Callable[[str], Any],
        config: Callable[[str], BackendConfig[Any]],
        when_ended: Callable[[BaseException], None],
        when_lost: Callable[[str, str], None],
    ) -> None:
        self._member, self._component, self._config = member, component, config
        self._when_ended, self._when_lost = when_ended, when_lost
        self._lock = threading.Lock()
        self._groups: dict[str, RpcGroup] = {}
        self.made: Endpoint | None = None
        self.is_open = False

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint, made but perhaps not open."""
        if self.made is None:
            transport = self._component("transport")
            serializer = self._component("serializer")
            config = cast("TransportConfig", self._config("transport"))
            self.made = Endpoint(transport, serializer, self._member, config)
            self.made.when_ended(self._when_ended)
        return self.made

    def open(self) -> Endpoint:
        """Return the endpoint, open."""
        endpoint = self.endpoint
        if not self.is_open:
            self.is_open = True
            endpoint.open()
            endpoint.when_lost(self._when_lost)
        return endpoint

    # -- groups -------------------------------------------------------------------------------

    def world(self) -> RpcGroup:
        """Return the group of all members."""
        return RpcGroup(self.endpoint, WORLD, self._member.names)

    def of_component(self, name: str) -> RpcGroup:
        """Return the group of all members for what the component *name* does among them."""
        return RpcGroup(self.endpoint, f"component/{name}", self._member.names)

    def group(
        self, name: str | None, members: Sequence[str] | None, timeout: float = -1
    ) -> RpcGroup:
        """Return the group of that name, once all its members have called this; as the runtime's.

        The endpoint is open.

        Raises:
            ValueError: this member is not among *members*, or others gave other members.
            PeerLostError: a member ended before it entered.
            CallTimeoutError: a member did not enter in time.
        """
        wanted = list(self._member.names) if members is None else list(members)
        name = WORLD if name is None and members is None else name
        if name is None:
            message = f"a group of {wanted} needs a name"
            raise ValueError(message)
        known = self._groups.get(name)
        if known is not None and not known.destroyed:
            if members is not None and sorted(wanted) != known.get_group_members():
                message = f"group {name!r} has members {known.get_group_members()}, not {wanted}"
                raise ValueError(message)
            return known
        if name == WORLD:
            if members is not None:
                message = f"{WORLD!r} is the group of all members: choose another name"
                raise ValueError(message)
            with self._lock:
                return self._groups.setdefault(name, self.world())
        group = enter(self.endpoint, name, wanted, timeout)
        with self._lock:
            self._groups[name] = group
        return group
