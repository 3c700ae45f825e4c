"""Who this process is in the job that a config describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel.errors import ConfigError
from pparallel.runtime import environment
from pparallel.runtime.member import Member, default_names
from pparallel.runtime.rpc import context

if TYPE_CHECKING:
    from pparallel.builder.runtime_config import RuntimeConfig


def resolve(config: RuntimeConfig, member: Member | None) -> Member:
    """Return the member to be: given, or torchrun's, or the only one.

    Raises:
        ConfigError: there are several members and nothing says which one this is.
    """
    if member is not None:
        _check(config, member)
        return member
    if (found := by_torchrun(config)) is not None:
        return found
    if config.members == "auto":
        message = "'auto' takes the members from torchrun, and its variables are not set"
        raise ConfigError(message, path="members")
    if len(config.names) > 1:
        message = (
            f"there are {len(config.names)} members and nothing says which one this process is: "
            "start them with pparallel.launch(config, target) or 'pparallel run', "
            "or give build(config, member=pparallel.Member(...))"
        )
        raise ConfigError(message, path="members")
    return Member(name=config.names[0])


def by_torchrun(config: RuntimeConfig) -> Member | None:
    """Return the member that torchrun's variables describe, if they are for this config."""
    found = environment.torchrun()
    if found is None:
        return None
    size = found.world_size
    if config.members != "auto" and (len(config.names) != size or context.count()):
        return None
    names = default_names(size) if config.members == "auto" else tuple(config.names)
    return Member(names[found.rank], found.rank, found.local_rank, size, names, found.address)


def _check(config: RuntimeConfig, member: Member) -> None:
    if config.members != "auto" and list(member.names) != config.names:
        message = f"the config has members {config.names}, the member given {list(member.names)}"
        raise ConfigError(message, path="members")
