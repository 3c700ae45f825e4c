"""The base class of collectives: messages between the members of a group."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Self

from pparallel.interfaces.collective.algorithms import Operation
from pparallel.interfaces.collective.memory import overlaps_itself, separate
from pparallel.interfaces.collective.work import Work
from pparallel.interfaces.resource import Resource

if TYPE_CHECKING:
    import torch
    from torch import Tensor

USER_TAGS = 2**24  #: users' tags are less than this; those above belong to the operations


class Messages(Resource):
    """A group of members that send one another tensors; the operations stand on this."""

    _begun = 0

    @property
    @abstractmethod
    def rank(self) -> int:
        """This member's global rank."""

    @abstractmethod
    def size(self) -> int:
        """Return the number of members of the group."""

    @property
    def ranks(self) -> Sequence[int]:
        """The global ranks of the group's members, in order; all of them by default."""
        return range(self.size())

    @property
    def straight(self) -> bool:
        """Whether coalesced operations take the tensors where they lie, not laid out anew first."""
        return False

    @abstractmethod
    def new_group(self, ranks: Sequence[int]) -> Self:
        """Return an open group of some of the members; all of *ranks*, and only they, call this.

        Each call makes another group, even of the same ranks: members of several groups of one
        set of ranks make them in the same order. Its members are in order of rank. It closes with
        this group at the latest.

        Raises:
            ValueError: this member is not among *ranks*, or one is not a member, or there twice.
        """

    @abstractmethod
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        """Start to send *tensor*; any thread may call this.

        Neither this nor the work's ``wait()`` needs the receiver to have come, and *tensor* may be
        changed once ``wait()`` has returned.

        Raises:
            ValueError: *dst* is this member or not in the group, or *tag* is not 0 on a backend
                without tags.
        """

    @abstractmethod
    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        """Start to receive into *tensor*; any thread may call this.

        The work's ``wait()`` returns the sender's rank. It raises ``ValueError`` if what was sent
        has another shape or dtype; that message is gone then, and its sender knows nothing of it.
        With ``src=None`` the next message of *tag* from anyone is taken; that fails with
        ``PeerLostError`` when no other member is left.

        Raises:
            ValueError: *src* is this member or not in the group, or is ``None`` on a backend
                without ``any_source``, or *tag* is not 0 on one without tags.
        """

    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> None:
        """Send *tensor* and wait until it may be changed again."""
        self.isend(tensor, dst, _users(tag)).wait()

    def recv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> int:
        """Receive into *tensor* and return the sender's rank."""
        return self.irecv(tensor, src, _users(tag)).wait()

    def operation(self, tag: int) -> Operation:
        """Return what carries out the operation of that *tag*; a backend may return its own."""
        return Operation(self, tag, self.ranks, self._position(self.rank))

    def operation_on_objects(self, tag: int) -> Operation:
        """As :meth:`operation`, for objects as bytes: tensors of the CPU whose sizes may differ."""
        return self.operation(tag)

    def carry_out(
        self,
        operation: Operation,
        run: Callable[[Operation], None],
        then: Callable[[], None] | None = None,
        *,
        async_op: bool = False,
    ) -> Work[None] | None:
        """Carry out an operation: every one of this group comes through here, as it is begun.

        By default the calling thread does so, or :meth:`Operation.start` with *async_op*. A backend
        overrides this where its operations must not overlap, or belong to a thread of its own.

        Args:
            operation: what :meth:`operation` or :meth:`operation_on_objects` has returned.
            run: calls one method of the operation.
            then: what is left to do when that is done, before the work's ``wait()`` returns.
            async_op: whether to return its work at once.

        Returns:
            The work with *async_op*, and None without.
        """
        if async_op:
            return operation.start(run, then)
        run(operation)
        if then is not None:
            then()
        return None

    def _do(
        self,
        async_op: bool,
        run: Callable[[Operation], None],
        then: Callable[[], None] | None = None,
    ) -> Work[None] | None:
        """Do *run*, which calls one method of an operation, and then what is left to do here."""
        return self.carry_out(self.operation(self._next_tag()), run, then, async_op=async_op)

    def _next_tag(self) -> int:
        self._begun += 1
        return USER_TAGS + self._begun % USER_TAGS

    def _position(self, rank: int) -> int:
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} is not in this group of {list(self.ranks)}")
        return self.ranks.index(rank)

    def _other(self, rank: int) -> int:
        position = self._position(rank)
        if rank == self.rank:
            raise ValueError(f"rank {rank} is this member: messages go to another one")
        return position

    def _members(self, ranks: Sequence[int]) -> list[int]:
        """Return the ranks of a new group in order, if they can be one."""
        for rank in ranks:
            self._position(rank)
        if len(set(ranks)) < len(ranks):
            raise ValueError(f"a group has each member once, not {list(ranks)}")
        if self.rank not in ranks:
            raise ValueError(
                f"rank {self.rank} is not in the new group of {list(ranks)}: only its members make"
                " it"
            )
        return sorted(ranks)

    def _one_each(
        self, what: str, tensors: Sequence[Tensor] | None, *, one_shape: bool = False
    ) -> list[Tensor]:
        if tensors is None or len(tensors) != self.size():
            raise ValueError(wrong_count(what, tensors, self.size()))
        found = [validated(each) for each in tensors]
        first = found[0]
        for each in found:
            if each.dtype != first.dtype:
                raise ValueError(f"{what} has one dtype, not {first.dtype} and {each.dtype}")
            if one_shape and each.shape != first.shape:
                raise ValueError(
                    f"{what} has tensors of one shape, not {tuple(first.shape)} and"
                    f" {tuple(each.shape)}: pad them, or use all_gather() or all_to_all(), which"
                    " take several shapes"
                )
        return found

    def _one_output_each(
        self, what: str, tensors: Sequence[Tensor] | None, *, one_shape: bool = False
    ) -> list[Tensor]:
        found = self._one_each(what, tensors, one_shape=one_shape)
        return separate(what, [validated_output(each) for each in found])


def _users(tag: int) -> int:
    if not 0 <= tag < USER_TAGS:
        raise ValueError(f"a tag is at least 0 and less than {USER_TAGS}, not {tag}")
    return tag


def validated(tensor: Tensor) -> Tensor:
    """Return *tensor* without its gradient, if collectives can carry it, on whatever device.

    Raises:
        ValueError: its elements do not lie in memory by strides, as they are.
    """
    if tensor.is_quantized:
        message = f"a quantized tensor of {tensor.dtype} cannot be sent: send its int_repr()"
        raise ValueError(message)
    if tensor.is_nested:
        raise ValueError("a nested tensor cannot be sent: send those that unbind() returns")
    if tensor.layout is not _strided():
        raise ValueError(
            f"a tensor of the layout {tensor.layout} cannot be sent: send its indices and values,"
            " or what to_dense() returns"
        )
    return _writable(tensor) if tensor.is_inference() else tensor.detach()


def _writable(tensor: Tensor) -> Tensor:
    """Return a tensor on the memory of one that was made in inference mode.

    Torch has such a one written to in that mode alone, and other threads may be to do so. What has
    no memory of its own, as some subclasses, stays as it is.
    """
    import torch

    if type(tensor) not in {torch.Tensor, torch.nn.Parameter} or tensor._is_zerotensor():
        return tensor.detach()
    with torch.inference_mode(False), torch.no_grad():
        found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        found.set_(tensor.untyped_storage(), *place)
        if tensor.is_conj():
            found = found.conj()
        return torch._neg_view(found) if tensor.is_neg() else found


def validated_output(tensor: Tensor) -> Tensor:
    """As :func:`validated`, for a tensor to fill: each of its elements has memory of its own.

    Raises:
        ValueError: it cannot be carried, or has elements that share memory, such as an expanded
            tensor's.
    """
    found = validated(tensor)
    if overlaps_itself(found):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} cannot be"
            " filled, for its elements share memory, as after expand(): give a clone()"
        )
    return found


@cache
def _strided() -> torch.layout:
    import torch

    return torch.strided


def wrong_count(what: str, given: Sequence[object] | None, size: int) -> str:
    """Say that a list has not one entry for each member."""
    count = "nothing" if given is None else len(given)
    return f"{what} has one entry for each of the {size} members, not {count}"
