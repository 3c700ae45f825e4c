"""Which members have a part in a gradient server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pparallel.errors import ConfigError
from pparallel.runtime.member import Member
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.names import check_members


class Who(NamedTuple):
    """The members that hold primaries, and those that hold secondaries."""

    primaries: tuple[str, ...]
    secondaries: tuple[str, ...]

    @classmethod
    def of(cls, name: str, config: GradServerReducerConfig, member: Member) -> Who:
        """Return who has which part in the reducer *name*.

        Raises:
            ConfigError: one is no member, or named twice.
        """
        if config.primaries is not None and config.primary is not None:
            message = "give 'primary' or 'primaries', not both"
            raise ConfigError(message, path=f"{name}.primaries")
        primaries = config.primaries or (config.primary or member.names[0],)
        secondaries = config.secondaries or primaries
        where = "primary" if config.primaries is None else "primaries"
        if config.role != "member" and (len(primaries) > 1 or config.max_staleness is not None):
            message = f"a {config.role} knows one primary, and no max_staleness: leave them out"
            raise ConfigError(message, path=f"{name}.role")
        for key, given in ((where, primaries), ("secondaries", secondaries)):
            check_members(member, f"{name}.{key}", given)
            _check_once(f"{name}.{key}", given)
        return cls(primaries, secondaries)


def trains(config: GradServerReducerConfig, who: Who, member: Member, name: str) -> bool:
    """Return whether the member called *name* feeds batches."""
    dedicated = config.dedicated
    if dedicated is None:
        dedicated = member.world_size > len(who.primaries)
    return config.role != "server" and not (dedicated and name in who.primaries)


def _check_once(path: str, given: Sequence[str]) -> None:
    for index, each in enumerate(given):
        if each in given[:index]:
            message = f"{each!r} is named twice: a member holds one at most"
            raise ConfigError(message, path=path)
