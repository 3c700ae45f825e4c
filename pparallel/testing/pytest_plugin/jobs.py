"""The config of a job whose members have the backends under test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pparallel.builder import RuntimeConfig, load
from pparallel.config import BackendConfig
from pparallel.errors import ConfigError, UnknownBackendError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.plugin import EVERYWHERE, Reach
from pparallel.registry import default_registry

_NEAREST_FIRST: tuple[Reach, ...] = ("threads", "processes", "machines")


def job(members: Any, sections: Mapping[str, BackendConfig[Any]]) -> RuntimeConfig:
    """Return the config of a job with the backends under test.

    Without a launcher under test, its members live as near one another as all the backends allow.
    The test is skipped where its backends cannot work together.
    """
    chosen = dict(sections)
    if "launcher" not in chosen:
        chosen["launcher"] = _launcher(chosen)
    config = RuntimeConfig(members=members, **chosen)
    try:
        return load(config)
    except UnknownBackendError:
        raise
    except ConfigError as error:
        section, _, key = error.path.partition(".")
        if section not in sections or key != "backend":
            raise
        too_near = str(error)  # the backend works less far away than the launcher puts members
    pytest.skip(too_near)


def _launcher(sections: Mapping[str, BackendConfig[Any]]) -> LauncherConfig:
    """Return the launcher that keeps members in one place where all the backends work."""
    registry = default_registry()
    reaches = [registry.find(each.interface, each.backend).reach for each in sections.values()]
    shared = EVERYWHERE.intersection(*reaches)
    launchers = [
        each
        for each in registry.offers()
        if each.interface == "launcher" and each.status == "available" and shared & set(each.reach)
    ]
    place = next((each for each in _NEAREST_FIRST if each in shared), None)
    fitting = [each for each in launchers if place in each.reach]
    if not fitting:
        names = ", ".join(f"{each.interface} {each.backend!r}" for each in sections.values())
        pytest.skip(f"no launcher puts members where all of these work: {names}")
    nearest = min(fitting, key=lambda each: (len(each.reach), each.name))
    return load(LauncherConfig, {"backend": nearest.name})
