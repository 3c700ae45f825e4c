"""Members that a config names."""

from __future__ import annotations

from collections.abc import Iterable

from pparallel.errors import ConfigError, did_you_mean
from pparallel.runtime.member import Member


def check_members(member: Member, path: str, given: Iterable[str]) -> None:
    """Refuse what is no member.

    Raises:
        ConfigError: the first that is none is named, with *path*, where the config says it.
    """
    for each in given:
        if each not in member.names:
            hint = did_you_mean(each, member.names)
            message = f"{each!r} is no member; members: {', '.join(member.names)}.{hint}"
            raise ConfigError(message, path=path)
