"""What is installed: the interfaces, and the backends that plugins offer for them."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import pluggy
from typing_extensions import override

from pparallel import plugin
from pparallel.config import BackendConfig
from pparallel.errors import (
    ConfigError,
    MissingDependencyError,
    UnknownBackendError,
    did_you_mean,
)
from pparallel.interfaces.collective.config import CollectiveConfig
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.placer.config import PlacerConfig
from pparallel.interfaces.pool.config import PoolConfig
from pparallel.interfaces.reducer import ReducerConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel.plugin import GROUP, INTERFACE_VERSIONS, Backend, Reach
from pparallel.runtime import environment

if TYPE_CHECKING:
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
        interface_version: the version of its interface that it was written for; ``None`` where its
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


class _Plugin(NamedTuple):
    """Something that offers backends.

    Attributes:
        name: of its entry point, or of the module if it was given by hand.
        module: the module (or object) that holds its hook, as text.
        package: the distribution that brings it.
        version: the version of that distribution.
    """

    name: str
    module: str
    package: str = ""
    version: str = ""

    @override
    def __str__(self) -> str:
        package = f" ({self.package} {self.version})" if self.package else ""
        return f"{self.module}{package}"


class Registry:
    """The backends that plugins offer; a broken plugin harms no other.

    Args:
        plugins: modules or objects with a ``pparallel_backends`` hook.
        entry_points: also take the plugins of all installed distributions.

    Raises:
        ConfigError: ``PPARALLEL_STRICT_PLUGINS`` is set and something is wrong with a plugin.
    """

    def __init__(self, *plugins: object, entry_points: bool = True) -> None:
        self._strict = environment.strict_plugins()
        self._asked: list[object] = []
        self._hooks: list[tuple[_Plugin, pluggy.HookRelay]] = []
        self._usable: dict[tuple[str, str], list[tuple[_Plugin, Backend]]] = defaultdict(list)
        self._broken: list[tuple[_Plugin, Backend | None, str]] = []
        if entry_points:
            disabled = environment.disabled_plugins()
            for point in importlib.metadata.entry_points(group=GROUP):
                if point.name not in disabled:
                    self._add(_described(point), point.load)
        for each in plugins:
            name = str(getattr(each, "__name__", None) or type(each).__name__)
            self._add(_Plugin(name, name), lambda each=each: each)  # type: ignore[misc]
        if self._strict:
            for key, same in self._usable.items():
                _refuse_duplicates(key, same)

    def _add(self, source: _Plugin, load: Callable[[], object]) -> None:
        """Ask a plugin for its backends, and keep what is wrong with it."""
        try:
            hooks = load()
            if any(hooks is each for each in self._asked):
                return
            self._asked.append(hooks)
            relay = _relay(hooks)
            records = _records(relay)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            missing = _missing(error, source)
            if self._strict:
                reason = missing or f"{type(error).__name__}: {error}"
                raise ConfigError(f"plugin {source} cannot be loaded: {reason}") from error
            self._broken.append((source, None, missing or traceback.format_exc().rstrip()))
            return
        self._hooks.append((source, relay))
        for each in records:
            problem = _outdated(each, source)
            if problem and self._strict:
                raise ConfigError(problem)
            if problem:
                self._broken.append((source, each, problem))
            else:
                self._usable[each.interface, each.name].append((source, each))

    @property
    def context(self) -> dict[str, Any]:
        """The validation context in which configs find the backends of this registry."""
        return {"registry": self}

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
        key = interface, name
        if same := self._usable.get(key):
            _refuse_duplicates(key, same)
            return same[0][1]
        for source, backend, problem in self._broken:
            if backend is not None and (backend.interface, backend.name) == key:
                message = f"{interface} backend {name!r} of plugin {source} is broken: {problem}"
                raise ConfigError(message)
        known = [each for filled, each in self._usable if filled == interface]
        suspects = {str(source) for source, backend, _ in self._broken if backend is None}
        raise UnknownBackendError(interface, name, known, broken=suspects)

    def config(self, interface: str, name: str) -> type[BackendConfig[Any]]:
        """Import the config class of the backend of that name.

        Raises:
            UnknownBackendError: no installed plugin offers it.
            MissingDependencyError: a library that its config needs is not installed.
            ConfigError: its plugin is broken: there is no such class, or it is not this backend's.
        """
        backend = self.find(interface, name)
        found: type[BackendConfig[Any]] = _imported(backend, backend.config)
        base = INTERFACES[interface]
        if not issubclass(found, base):
            problem = f"must derive from {base.__module__}.{base.__qualname__}"
        elif found.model_fields["backend"].default != name:
            problem = f"must give its field 'backend' the default {name!r}"
        else:
            return found
        raise ConfigError(f"{interface} backend {name!r} ({backend.config}): the config {problem}")

    def home(self, config: str) -> str:
        """Return the module of the config class of that name; an empty string: none is there."""
        records = (each[1].config.partition(":") for same in self._usable.values() for each in same)
        return next((module for module, _, name in records if name == config), "")

    def load(self, backend: Backend) -> type[Any]:
        """Import the class of *backend*.

        Raises:
            MissingDependencyError: a library that it needs is not installed.
            ConfigError: its plugin is broken: there is no such class, or it fills no interface.
        """
        found: type[Any] = _imported(backend, backend.target)
        interface = interface_class(INTERFACES[backend.interface])
        left_out = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        if not issubclass(found, interface):
            problem = f"must derive from {interface.__module__}.{interface.__qualname__}"
        elif left_out:
            problem = f"leaves out what {interface.__qualname__} asks for: {left_out}"
        else:
            return found
        what = f"{backend.interface} backend {backend.name!r} ({backend.target})"
        raise ConfigError(f"{what}: {found.__name__} {problem}")

    def interfaces(self, name: object) -> list[str]:
        """Return the interfaces that have a backend of that name, pools first, launchers last."""
        found = [interface for interface, each in self._usable if each == name]
        return sorted(found, key=lambda each: (each != "pool", each == "launcher", each))

    def default(self, interface: str) -> str:
        """Return the backend that a section which names none is for."""
        return INTERFACES[interface].default_backend

    def offers(self) -> list[Offer]:
        """Return what is installed, sorted; plugins that could not be loaded come last."""
        offers = [_offer(*each) for each in self._broken]
        for key, same in self._usable.items():
            doubt = _duplicates(key, same)
            offers += [_offer(source, backend, doubt) for source, backend in same]
        return sorted(offers, key=lambda each: (not each.interface, each))

    def listeners(self, member: Member) -> list[Listener]:
        """Return what plugins have called with each event of *member*.

        Raises:
            ConfigError: ``PPARALLEL_STRICT_PLUGINS`` is set and a plugin fails.
        """
        found: list[Listener] = []
        for source, hooks in self._hooks:
            try:
                for listeners in hooks.pparallel_listeners(member=member):
                    found += listeners
            except Exception as error:
                if self._strict:
                    raise ConfigError(f"plugin {source} cannot listen: {error!r}") from error
                logger.exception("Plugin %s cannot listen to what happens", source)
        return found


@functools.cache
def default_registry() -> Registry:
    """Return the registry of what is installed; made once."""
    return Registry()


def interface_class(base: type[BackendConfig[Any]]) -> type[Any]:
    """Return the class that backends of an interface derive from; *base* is its base config."""
    found: Any = next(
        parameters[0]
        for each in base.__mro__
        if (parameters := getattr(each, "__pydantic_generic_metadata__", {}).get("args"))
    )
    if isinstance(found, str):  # its package imports the class when it is asked for
        found = getattr(importlib.import_module(base.__module__.removesuffix(".config")), found)
    return cast("type[Any]", found)


def how_to_build(cls: type[Any]) -> str:
    """Say how an object of an interface is built, where its class was given; empty: it is none."""
    for base in INTERFACES.values():
        interface = interface_class(base)
        if issubclass(cls, interface):
            return base.how_to_build(interface.__name__)
    return ""


# -- plugins ---------------------------------------------------------------------------------------


def _described(point: importlib.metadata.EntryPoint) -> _Plugin:
    dist = point.dist
    # Metadata that is not there raises, in one Python version or another, when it is asked for.
    found = dist is not None and (dist.read_text("METADATA") or dist.read_text("PKG-INFO"))
    if dist is None or not found:
        return _Plugin(point.name, point.value, "an unnamed distribution", "?")
    metadata = dist.metadata
    return _Plugin(point.name, point.value, metadata["Name"] or "?", metadata["Version"] or "?")


def _relay(hooks: object) -> pluggy.HookRelay:
    """Return a plugin's hooks, ready to be called."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(plugin)
    manager.register(hooks)
    manager.check_pending()
    if not manager.get_hookcallers(hooks):
        message = "it has no function pparallel_backends marked with pparallel.plugin.hookimpl"
        raise ConfigError(message)
    return manager.hook


def _records(relay: pluggy.HookRelay) -> list[Backend]:
    """Return what a plugin's hook offers; nothing if it only listens."""
    if not relay.pparallel_backends.get_hookimpls():
        return []
    answers = relay.pparallel_backends()
    if not answers:  # pluggy leaves out None
        message = "its pparallel_backends() returns None, not a list of pparallel.plugin.Backend"
        raise ConfigError(message)
    records = [each for offered in answers for each in offered]
    for each in records:
        if not isinstance(each, Backend):
            message = f"pparallel_backends() offers {each!r}, which is no pparallel.plugin.Backend"
            raise ConfigError(message)
    return records


def _missing(error: BaseException, source: _Plugin) -> str:
    """Say that an entry point names no module that exists; an empty string if that is not it."""
    if not importlib.metadata.EntryPoint.pattern.match(source.module):
        return f"its entry point {source.name} = {source.module!r} names no module: write 'package'"
    module = source.module.partition(":")[0].strip()
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    if error.name != module and not module.startswith(f"{error.name}."):
        return ""
    return (
        f"its entry point {source.name} = {source.module!r} names a module that is not installed:"
        f" there is no {error.name}; correct it under [project.entry-points.{GROUP}], or put the"
        " package into the wheel, and install it again"
    )


def _outdated(backend: Backend, source: _Plugin) -> str:
    """Say that *backend* is for another version of its interface; an empty string if not."""
    version, current = backend.interface_version or 0, INTERFACE_VERSIONS[backend.interface]
    if version == current:
        return ""
    upgrade = (source.package or source.module) if version < current else "pparallel"
    return (
        f"{backend.target} was written for version {version} of the interface {backend.interface},"
        f" and this pparallel has version {current}: upgrade {upgrade}"
    )


def _duplicates(key: tuple[str, str], same: list[tuple[_Plugin, Backend]]) -> str:
    """Say which plugins offer the same backend; an empty string if only one does."""
    if len(same) < 2:
        return ""
    who = " and by ".join(f"{source} as {backend.target}" for source, backend in same)
    names = ",".join(sorted({source.name for source, _ in same}))
    return (
        f"{key[0]} backend {key[1]!r} is offered by {who}: uninstall one, or leave it out with"
        f" PPARALLEL_DISABLE_PLUGINS (its plugin is one of: {names})"
    )


def _refuse_duplicates(key: tuple[str, str], same: list[tuple[_Plugin, Backend]]) -> None:
    if doubt := _duplicates(key, same):
        raise ConfigError(doubt)


def _offer(source: _Plugin, backend: Backend | None, problem: str) -> Offer:
    if backend is None:
        given = "", source.name, source.package, source.version
        return Offer(*given, status="broken", detail=problem)
    missing = [each for each in backend.requires if not _is_installed(each)]
    status: Status = "broken" if problem else "missing dependency" if missing else "available"
    if missing and not problem:
        problem = f"not installed: {', '.join(missing)}"
        problem += f"; to install: {backend.install}" if backend.install else ""
    return Offer(
        backend.interface,
        backend.name,
        source.package,
        source.version,
        tuple(sorted(backend.features)),
        tuple(sorted(backend.reach)),
        status,
        problem,
        backend.interface_version,
    )


def _is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it or what holds it."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except ValueError:  # it is imported already, by means that leave no spec
        return True


def _imported(backend: Backend, path: str) -> Any:
    """Import the class at *path*, which *backend* names.

    Raises:
        MissingDependencyError: a library that it needs is not installed.
        ConfigError: there is no such class.
    """
    what = f"{backend.interface} backend {backend.name!r} ({path})"
    module_name, _, class_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ImportError) else None
        if missing and missing.partition(".")[0] != module_name.partition(".")[0]:
            raise MissingDependencyError(what, str(error), backend.install) from error
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{what} cannot be imported: {reason}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        hint = did_you_mean(class_name, vars(module))
        raise ConfigError(f"{what}: {module_name} has no class {class_name!r}.{hint}")
    return found
