"""Who this member of a job is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a job: who it is and how it finds the others.

    Attributes:
        name: its name, unique in the job.
        rank: its number, from 0 to ``world_size - 1``; names are listed by rank.
        local_rank: its number among the members of its machine.
        world_size: how many members the job has.
        names: the names of all members, by rank.
        rendezvous: where the members meet; only the transport reads it. ``None``: alone.
        keys: this member's secrets.
    """

    name: str = "member-0"
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    names: tuple[str, ...] = ()
    rendezvous: str | None = None
    keys: Mapping[str, SecretStr] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.names:
            default = (self.name,) if self.world_size == 1 else default_names(self.world_size)
            object.__setattr__(self, "names", default)
        if len(self.names) != self.world_size or not 0 <= self.rank < self.world_size:
            message = f"rank {self.rank} of {self.world_size} does not fit members {self.names}"
            raise ValueError(message)
        if self.names[self.rank] != self.name:
            message = f"member {self.rank} is {self.names[self.rank]!r}, not {self.name!r}"
            raise ValueError(message)


def default_names(count: int) -> tuple[str, ...]:
    """Return the names of *count* members that were given none."""
    return tuple(f"member-{rank}" for rank in range(count))


class MemberContext:
    """The member for which threads work: a runtime makes one and shares it with its endpoint.

    Attributes:
        member: who it is.
        endpoint: how it calls others, once there is a :class:`pparallel.runtime.rpc` endpoint.
        is_closed: whether its runtime is closed.
    """

    __slots__ = ("endpoint", "is_closed", "member")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.endpoint: Any = None
        self.is_closed = False


#: that of the calling thread, where it is known
context: ContextVar[MemberContext | None] = ContextVar("pparallel_member", default=None)


def current() -> Member | None:
    """Return the member for which the calling thread works, if it is known."""
    found = context.get()
    return None if found is None else found.member


class _Acting:
    """Sets the context, and puts back what was before.

    It may be left in another thread or task, or later than one that was entered after it.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, inner: MemberContext) -> None:
        self._inner = inner

    def __enter__(self) -> None:
        self._outer = context.get()
        context.set(self._inner)

    def __exit__(self, *_: object) -> None:
        if context.get() is self._inner:
            outer = self._outer
            context.set(None if outer is not None and outer.is_closed else outer)


_ALREADY: AbstractContextManager[None] = nullcontext()


def acting_for(inner: MemberContext) -> AbstractContextManager[None]:
    """Have what runs inside be done for the member of *inner*."""
    return _ALREADY if context.get() is inner else _Acting(inner)


def acting_as(member: Member) -> AbstractContextManager[None]:
    """Have what runs inside be done by *member*."""
    return acting_for(MemberContext(member))


_local_rank: ContextVar[int | None] = ContextVar("pparallel_local_rank", default=None)


def local_rank() -> int | None:
    """Return the calling rank's number on its machine, None where its launcher has not said."""
    return _local_rank.get()


@contextmanager
def placed(local_rank: int) -> Iterator[None]:
    """Say that what runs inside is the rank of that number on its machine; for a launcher."""
    token = _local_rank.set(local_rank)
    try:
        yield
    finally:
        _local_rank.reset(token)
