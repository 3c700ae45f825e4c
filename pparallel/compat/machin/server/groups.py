"""What a server needs of its group: machin's, or pparallel's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup


class Group(Protocol):
    """What is asked of a group here; :class:`pparallel.RpcGroup` has it as well."""

    def is_member(self, target: Any = None) -> bool:
        """Return whether *target*, by default the calling member, is in it."""

    def get_cur_name(self) -> str:
        """Return the calling member's name."""

    def get_group_members(self) -> list[str]:
        """Return the names of all members, sorted."""

    def pair(self, key: str, value: object) -> None:
        """Name a value."""

    def register(self, key: str, service: Callable[..., Any]) -> None:
        """Name a function."""

    def deregister(self, key: str) -> None:
        """Take the name of a function back."""

    @property
    def registered_sync(self) -> Callable[..., Any]:
        """Call a function by its name."""


def native_of(group: object) -> RpcGroup | None:
    """Return pparallel's own group that *group* is or stands for, ``None`` if there is none."""
    found = group if isinstance(group, RpcGroup) else getattr(group, "native", None)
    return found if isinstance(found, RpcGroup) else None


def needed(group: object) -> RpcGroup:
    """Return pparallel's own group that *group* is or stands for.

    Raises:
        TypeError: there is none.
    """
    if (native := native_of(group)) is None:
        message = (
            f"{group!r} is no group: give what World.create_rpc_group() returned, or"
            " Runtime.group()"
        )
        raise TypeError(message)
    return native


def require_member(group: Group) -> None:
    """Refuse a server in a member that is not in its group.

    Raises:
        ValueError: it is not.
    """
    if not group.is_member():
        members: Sequence[str] = group.get_group_members()
        message = (
            f"{group.get_cur_name()!r} is not in the group: a server is made in one of its"
            f" members, {', '.join(members)}"
        )
        raise ValueError(message)


def parts_in(native: RpcGroup, name: str) -> dict[str, Any]:
    """Return who this member is in a group, and where its component *name* meets the others'."""
    members = native.get_group_members()
    me = native.get_cur_name()
    member = Member(me, members.index(me), 0, len(members), tuple(members))
    return {"member": member, "group": native.within(name)}
