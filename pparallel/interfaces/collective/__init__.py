"""Collective: operations on tensors that all members of a group do together."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pparallel.config import BackendConfig
from pparallel.interfaces.collective.messages import USER_TAGS
from pparallel.interfaces.collective.multigpu import MultiGpuForms
from pparallel.interfaces.collective.objects import ObjectForms
from pparallel.interfaces.collective.work import ReduceOp, Work

__all__ = ["USER_TAGS", "Collective", "CollectiveConfig", "ReduceOp", "Work"]


class Collective(ObjectForms, MultiGpuForms):
    """A group of members that send one another tensors and combine them.

    Members are called by their global rank everywhere, ``src`` and ``dst`` too, as in torch.
    Tensors may have any dtype, complex ones too, and any strides; those of one operation have the
    same shape and dtype in all members, or the operation raises ``ValueError`` where a message
    does not fit. Outputs are written in place, and gradients are not recorded. With
    ``async_op=True`` an operation returns a :class:`Work` at once and its tensors must not be
    touched until ``wait()`` returns; else it returns when this member's part is done.

    A backend fills in :meth:`open`, :meth:`close`, :meth:`isend`, :meth:`irecv`,
    :meth:`new_group`, :attr:`rank` and :meth:`size`, and, for groups of less than all members,
    :attr:`ranks`. The rest stands on these; a backend overrides what it can do faster.

    Guarantees:
        - Messages from one member to another with one tag arrive in the order sent; those of
          other tags and other groups are never mixed up with them.
        - All members get bit for bit the same from :meth:`all_reduce`.
        - Operations are matched by order: all members of a group begin the same ones in the same
          order, from one thread at a time. Those begun with ``async_op`` may then overlap.
        - An object that its member cannot serialise raises ``SerializationError`` in every member
          that waits for it.
        - A member that is lost raises ``PeerLostError`` in those that wait for it;
          :meth:`close` wakes with ``ClosedError`` whoever waits.

    Features:
        - ``any_source``: :meth:`irecv` and :meth:`recv` take ``src=None``.
        - ``tags``: messages are told apart by ``tag``; without it, user's tags must be 0.
        - ``cuda``: tensors may be on a GPU.
    """

    def destroy(self) -> None:
        """Close the group."""
        self.close()


class CollectiveConfig(BackendConfig[Collective], frozen=True):
    """What every collective is told.

    Attributes:
        timeout: seconds that an operation waits for the other members.
    """

    interface: ClassVar[str] = "collective"
    timeout: float = Field(default=1800.0, gt=0)
