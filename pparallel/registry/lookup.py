"""Finds backends by interface and name."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

from pparallel.config import BackendConfig
from pparallel.errors import (
    ConfigError,
    UnknownBackendError,
    did_you_mean,
)
from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.placer import PlacerConfig
from pparallel.interfaces.pool import PoolConfig
from pparallel.interfaces.reducer import ReducerConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel.plugin import Backend, Reach
from pparallel.registry.classes import how_to_build, load_class
from pparallel.registry.plugins import Collector, Offered, name_of
from pparallel.runtime import environment
from pparallel.runtime.events import Listener
from pparallel.runtime.member import Member

logger = logging.getLogger(__name__)

#: The base config of each interface, by name.
INTERFACES: Mapping[str, type[BackendConfig[Any]]] = {
    each.interface: each
    for each in (
        LauncherConfig,
        TransportConfig,
        SerializerConfig,
        PoolConfig,
        OrderedServerConfig,
        ReducerConfig,
        CollectiveConfig,
        PlacerConfig,
    )
}

Status = Literal["available", "missing dependency", "broken"]


@dataclass(frozen=True, slots=True, order=True)
class Offer:
    """One line of the table of what is installed.

    Attributes:
        interface: the interface that the backend fills; empty if its plugin did not say.
        name: the backend's name, or that of the plugin that could not be loaded.
        package: the distribution that brings it.
        version: the version of that distribution.
        features: the optional guarantees it gives, sorted.
        reach: how far apart members may be, sorted.
        status: whether it can be built.
        detail: why not, and what to do about it.
        interface_version: the version of the interfaces it was written for; ``None`` where its
            plugin did not get as far as to say.
    """

    interface: str
    name: str
    package: str
    version: str
    features: tuple[str, ...] = ()
    reach: tuple[Reach, ...] = ()
    status: Status = "available"
    detail: str = ""
    interface_version: int | None = None


class Registry:
    """The backends that plugins offer.

    Args:
        plugins: modules or objects with a ``pparallel_backends`` hook.
        entry_points: also take the plugins of all installed distributions.

    Raises:
        ConfigError: ``PPARALLEL_STRICT_PLUGINS`` is set and something is wrong with a plugin.
    """

    def __init__(self, *plugins: object, entry_points: bool = True) -> None:
        strict = environment.strict_plugins()
        collector = Collector(INTERFACES, strict)
        if entry_points:
            collector.add_installed()
        for each in plugins:
            collector.add(each)
        self._hooks = collector.hooks
        self._strict = strict
        self._broken = [each for each in collector.found if each.problem]
        self._usable: dict[tuple[str, str], list[Offered]] = defaultdict(list)
        for each in collector.found:
            if each.backend is not None and not each.problem:
                self._usable[each.backend.interface, each.backend.name].append(each)
        if strict:
            for same in self._usable.values():
                _refuse_duplicates(same)

    def find(self, interface: str, name: str) -> Backend:
        """Return the backend of that name.

        Raises:
            UnknownBackendError: no installed plugin offers it.
            ConfigError: two plugins offer it, or the one that does is broken.
        """
        if interface not in INTERFACES:
            hint = did_you_mean(interface, INTERFACES)
            hint = hint or f" There are {', '.join(INTERFACES)}."
            raise ConfigError(f"no interface {interface!r}.{hint}")
        same = self._usable.get((interface, name), [])
        _refuse_duplicates(same)
        for each in same:
            if each.backend is not None:
                return each.backend
        for broken in self._broken:
            if _key(broken) == (interface, name):
                message = f"{interface} backend {name!r} of plugin {broken.plugin} is broken"
                raise ConfigError(f"{message}: {broken.problem}")
        known = [key[1] for key in self._usable if key[0] == interface]
        suspects = {str(each.plugin) for each in self._broken if _key(each) is None}
        raise UnknownBackendError(interface, name, known, broken=suspects)

    def narrow(self, base: type[BackendConfig[Any]], name: object) -> type[BackendConfig[Any]]:
        """Return the config class of backend *name* (``None``: the default) of *base*'s interface.

        A config class that is one backend's already is returned as it is: its own ``backend``
        field refuses another's name. So is the base config for what is no name at all.
        """
        if name_of(base) is not None or not hasattr(base, "interface"):
            return base
        if name is None:
            name = self.default(base.interface)
        if not isinstance(name, str):
            return base
        return self.find(base.interface, name).config

    def interfaces(self, name: object) -> list[str]:
        """Return the interfaces that have a backend of that name, pools first, launchers last."""
        found = [interface for interface, each in self._usable if each == name]
        return sorted(found, key=lambda each: (each != "pool", each == "launcher", each))

    def how_to_build(self, cls: type[Any]) -> str:
        """Say how to build an object of interface *cls*; an empty string if it is none."""
        return how_to_build(cls)

    def default(self, interface: str) -> str:
        """Return the backend that a section which names none is for."""
        return INTERFACES[interface].default_backend

    def offers(self) -> list[Offer]:
        """Return what is installed, sorted; plugins that could not be loaded come last."""
        offers = [_offer(each) for each in self._broken]
        for same in self._usable.values():
            doubt = _duplicates(same)
            offers += [_offer(each, doubt) for each in same]
        return sorted(offers, key=lambda each: (not each.interface, each))

    def listeners(self, member: Member) -> list[Listener]:
        """Return what plugins have called with each event of *member*.

        Raises:
            ConfigError: ``PPARALLEL_STRICT_PLUGINS`` is set and a plugin fails.
        """
        found: list[Listener] = []
        for plugin, hooks in self._hooks:
            try:
                for listeners in hooks.pparallel_listeners(member=member):
                    found += listeners
            except Exception as error:
                if self._strict:
                    raise ConfigError(f"plugin {plugin} cannot listen: {error!r}") from error
                logger.exception("Plugin %s cannot listen to what happens", plugin)
        return found

    def load(self, backend: Backend) -> type[Any]:
        """Import the class of *backend*.

        Raises:
            MissingDependencyError: a library that it needs is not installed.
            ConfigError: its plugin is broken: there is no such class, or it fills no interface.
        """
        return load_class(backend, INTERFACES[backend.interface])


@functools.cache
def default_registry() -> Registry:
    """Return the registry of what is installed; made once."""
    return Registry()


def _key(offered: Offered) -> tuple[str, str] | None:
    """Return interface and name, as far as a record that may be broken says them."""
    config: object = getattr(offered.backend, "config", None)
    if not (isinstance(config, type) and issubclass(config, BackendConfig)):
        return None
    interface, name = getattr(config, "interface", None), name_of(config)
    return (interface, name) if isinstance(interface, str) and name else None


def _duplicates(same: list[Offered]) -> str:
    """Say who offers the same backend; an empty string if only one does."""
    if len(same) < 2 or (key := _key(same[0])) is None:
        return ""
    who = " and by ".join(
        f"{each.plugin} as {each.backend.target}" for each in same if each.backend is not None
    )
    names = ",".join(sorted({each.plugin.name for each in same}))
    return (
        f"{key[0]} backend {key[1]!r} is offered by {who}: uninstall one, or leave it out with"
        f" PPARALLEL_DISABLE_PLUGINS (its plugin is one of: {names})"
    )


def _refuse_duplicates(same: list[Offered]) -> None:
    if doubt := _duplicates(same):
        raise ConfigError(doubt)


def _offer(offered: Offered, doubt: str = "") -> Offer:
    source, backend, problem = offered.plugin, offered.backend, offered.problem or doubt
    interface, name = _key(offered) or ("", source.name)
    if backend is None:
        return Offer(interface, name, source.package, source.version, (), (), "broken", problem)
    requires = () if problem else backend.requires  # what is broken may have anything there
    missing = [each for each in requires if not _is_installed(each)]
    status: Status = "broken" if problem else "missing dependency" if missing else "available"
    if missing and not problem:
        problem = f"not installed: {', '.join(missing)}"
        problem += f"; to install: {backend.install}" if backend.install else ""
    return Offer(
        interface,
        name,
        source.package,
        source.version,
        _sorted(backend.features),
        _sorted(backend.reach),
        status,
        problem,
        backend.interface_version if isinstance(backend.interface_version, int) else None,
    )


def _sorted(found: object) -> tuple[Any, ...]:
    """Return a set's texts in order; nothing of what is no such set, in a record that is broken."""
    if not isinstance(found, Set) or not all(isinstance(each, str) for each in found):
        return ()
    return tuple(sorted(found))


def _is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it or what holds it."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except ValueError:  # it is imported already, by means that leave no spec
        return True
