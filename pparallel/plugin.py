"""What a plugin author imports: the hook, its marker, and the record it returns.

A plugin is a distribution with an entry point in group ``pparallel`` that names a module::

    [project.entry-points.pparallel]
    shelf = "pparallel_shelf"

The module offers its backends through a hook::

    from pparallel.plugin import Backend, hookimpl

    @hookimpl
    def pparallel_backends():
        return [Backend(ShelfServerConfig, "pparallel_shelf.server:ShelfServer")]

``ShelfServerConfig`` derives from the base config of the interface it fills and gives its
``backend`` field a default: that is its name in configs. The class is imported when it is first
built, and is called as ``ShelfServer(config, member=member, **parts)``: of the parts
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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pluggy

from pparallel.config import BackendConfig

GROUP = "pparallel"  #: pluggy project name and entry-point group
INTERFACE_VERSION = 1  #: raised when an interface changes in a way that breaks backends

Reach = Literal["threads", "processes", "machines"]
EVERYWHERE: frozenset[Reach] = frozenset({"threads", "processes", "machines"})

_hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of one interface.

    Attributes:
        config: its config class; the default of the ``backend`` field is its name.
        target: ``"module:Class"``, imported when first built and not before.
        install: what to type when that import fails.
        features: the optional guarantees it gives; the interface's page says which there are. Of
            this and of reach a set is kept as a frozenset.
        reach: how far apart the members of one job may be: threads of one process, processes of
            one machine, or machines. For a launcher, where it puts them.
        requires: modules whose absence means that the backend is known but not installed.
        interface_version: the version of the interfaces it was written for.
        defaults: of a launcher: backends, by interface, that its members take where a job's config
            has no section; other defaults follow from where it puts them.
    """

    config: type[BackendConfig[Any]]
    target: str
    install: str = ""
    features: frozenset[str] = field(default_factory=frozenset)
    reach: frozenset[Reach] = EVERYWHERE
    requires: tuple[str, ...] = ()
    interface_version: int = INTERFACE_VERSION
    defaults: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("features", "reach"):  # without a type checker, many write a set
            if isinstance(given := getattr(self, name), set):
                object.__setattr__(self, name, frozenset(given))

    @property
    def interface(self) -> str:
        """The interface it fills."""
        return self.config.interface

    @property
    def name(self) -> str:
        """The name that selects it."""
        name: str = self.config.model_fields["backend"].default
        return name


@_hookspec
def pparallel_backends() -> Iterable[Backend]:
    """Offer backends.

    Called once per process. Import nothing heavy here: name the class in ``target``.
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
