"""What a plugin author imports: the hook, its marker, and the record it returns.

A plugin is a distribution with an entry point in group ``pparallel`` that names a module::

    [project.entry-points.pparallel]
    shelf = "pparallel_shelf"

The module offers its backends through a hook::

    from pparallel.plugin import Backend, hookimpl

    @hookimpl
    def pparallel_backends():
        return [
            Backend(
                "ordered_server",
                "shelf",
                config="pparallel_shelf.config:ShelfServerConfig",
                target="pparallel_shelf.server:ShelfServer",
            )
        ]

``ShelfServerConfig`` derives from the base config of the interface it fills, and the default of
its ``backend`` field is the backend's name. Config and class are imported when they are first
needed, and the class is called as ``ShelfServer(config, member=member, **parts)``: of the parts
``serializer``, ``pool``, ``ordered_server``, ``collective``, ``group`` (an ``RpcGroup`` of all
members, named after the component), ``name`` (the component's name in its runtime), ``streams``
(random streams of its own, from the job's seed) and ``events`` (the member's event stream, to tell
of what happens) it is given those that its constructor asks for by keyword. A part that the config
also has as a field can be configured there.

A plugin may also listen to what happens in each member, with or without backends of its own::

    @hookimpl
    def pparallel_listeners(member):
        return [write_to_my_tracker]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import pluggy

from pparallel.errors import ConfigError, did_you_mean

GROUP = "pparallel"  #: pluggy project name and entry-point group
#: by interface; raised when that interface changes in a way that breaks backends
INTERFACE_VERSIONS: Mapping[str, int] = {
    "launcher": 1,
    "transport": 2,
    "serializer": 1,
    "pool": 1,
    "ordered_server": 1,
    "reducer": 1,
    "collective": 1,
    "placer": 1,
}

Reach = Literal["threads", "processes", "machines"]
EVERYWHERE: frozenset[Reach] = frozenset({"threads", "processes", "machines"})

_hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of one interface.

    Attributes:
        interface: the interface that it fills, as its section of a config is called.
        name: its name in configs, and the default of its config's field ``backend``.
        config: ``"module:Class"`` of its config, imported when a config names it.
        target: ``"module:Class"`` of its class, imported when it is first built.
        install: what to type when that import fails.
        features: the optional guarantees that it gives; the interface's page lists them. A set
            becomes a frozenset, here and in reach.
        reach: how far apart the members of one job may be: threads of one process, processes of
            one machine, or machines. For a launcher, where it puts them.
        requires: modules whose absence means that the backend is known but not installed.
        interface_version: the version of the interface that it was written for, of
            ``INTERFACE_VERSIONS``; by default the one of this pparallel.
        defaults: of a launcher: backends, by interface, that its members take where a job's config
            has no section; other defaults follow from where it puts them.

    Raises:
        ConfigError: a field is invalid.
    """

    interface: str
    name: str
    _: KW_ONLY
    config: str
    target: str
    install: str = ""
    features: frozenset[str] = field(default_factory=frozenset)
    reach: frozenset[Reach] = EVERYWHERE
    requires: tuple[str, ...] = ()
    interface_version: int | None = None
    defaults: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.interface not in INTERFACE_VERSIONS:
            hint = did_you_mean(str(self.interface), INTERFACE_VERSIONS)
            raise self._wrong("interface", hint or f" One of: {', '.join(INTERFACE_VERSIONS)}.")
        if not isinstance(self.name, str) or not self.name:
            raise self._wrong("name", " Write text, as 'shelf'.")
        for each in ("config", "target"):
            value = getattr(self, each)
            if not isinstance(value, str) or not all(value.partition(":")):
                raise self._wrong(each, " Write 'module:Class'.")
        self._check_sets()
        if not isinstance(self.requires, tuple | list):
            raise self._wrong("requires", " Write a tuple, as ('torch',).")
        if self.interface_version is None:
            object.__setattr__(self, "interface_version", INTERFACE_VERSIONS[self.interface])
        elif type(self.interface_version) is not int:
            raise self._wrong("interface_version", " Write a whole number.")

    def _check_sets(self) -> None:
        for each, example in ("features", "references"), ("reach", "processes"):
            value = getattr(self, each)
            if not isinstance(value, Set) or not all(isinstance(one, str) for one in value):
                raise self._wrong(each, f" Write a set of text, as frozenset({{{example!r}}}).")
            object.__setattr__(self, each, frozenset(value))
        if unknown := sorted(self.reach - EVERYWHERE):
            hint = did_you_mean(unknown[0], EVERYWHERE)
            raise self._wrong("reach", f" There are only {', '.join(sorted(EVERYWHERE))}.{hint}")

    def _wrong(self, field: str, advice: str) -> ConfigError:
        value = getattr(self, field)
        return ConfigError(f"{self.interface} backend {self.name!r}: {field}={value!r}.{advice}")


@_hookspec
def pparallel_backends() -> Iterable[Backend]:
    """Offer backends.

    Called once for each registry, of which a program has one. Import nothing heavy here: name the
    class in ``target``.
    """
    raise NotImplementedError


@_hookspec
def pparallel_listeners(member: Any) -> Iterable[Callable[[Any], object]]:
    """Listen to what happens in a member.

    Called each time a runtime is built, before it is entered. Each listener is called with every
    event (``pparallel.runtime.events.Event``) in the thread where it happens, and should return at
    once; what it raises is logged.

    Args:
        member: which member it is, a ``pparallel.Member``.
    """
    raise NotImplementedError
