"""Finds plugins and asks them what they offer; a broken one harms no other."""

from __future__ import annotations

import importlib.metadata
import traceback
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pluggy
from typing_extensions import override

from pparallel import plugin
from pparallel.config import BackendConfig
from pparallel.errors import ConfigError, did_you_mean
from pparallel.plugin import EVERYWHERE, GROUP, INTERFACE_VERSION, Backend
from pparallel.runtime import environment


@dataclass(frozen=True, slots=True)
class Plugin:
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


@dataclass(frozen=True, slots=True)
class Offered:
    """A backend as a plugin offers it, or why it cannot be used.

    Attributes:
        plugin: who offers it.
        backend: the record; ``None`` where the plugin did not get as far as to give one.
        problem: why it cannot be used; empty if it can.
    """

    plugin: Plugin
    backend: Backend | None = None
    problem: str = ""


@dataclass(slots=True)
class Collector:
    """Asks plugins for their backends and keeps what went wrong.

    Attributes:
        interfaces: each interface's base config by name.
        strict: raise what goes wrong instead of keeping it.
        found: what was offered.
        hooks: the hooks of those that could be loaded.
    """

    interfaces: Mapping[str, type[BackendConfig[Any]]]
    strict: bool = False
    found: list[Offered] = field(default_factory=list)
    hooks: list[tuple[Plugin, pluggy.HookRelay]] = field(default_factory=list)
    _asked: list[object] = field(default_factory=list)

    def add_installed(self) -> None:
        """Ask the plugins of all installed distributions."""
        disabled = environment.disabled_plugins()
        for point in importlib.metadata.entry_points(group=GROUP):
            if point.name not in disabled:
                self._add(_described(point), point.load)

    def add(self, hooks: object) -> None:
        """Ask a plugin that is at hand."""
        name = str(getattr(hooks, "__name__", None) or type(hooks).__name__)
        self._add(Plugin(name, name), lambda: hooks)

    def _add(self, source: Plugin, load: Callable[[], object]) -> None:
        offers: list[object] = []
        with self._keeping_what_goes_wrong(source):
            hooks = load()
            if any(hooks is each for each in self._asked):
                return
            self._asked.append(hooks)
            relay = _relay(hooks)
            offers = _offers_of(relay)
            self.hooks.append((source, relay))
        for each in offers:
            self._add_backend(source, each)

    def _add_backend(self, source: Plugin, backend: object) -> None:
        with self._keeping_what_goes_wrong(source):
            problem = _fault(backend, self.interfaces, source)
            if problem and self.strict:
                raise ConfigError(problem)
            known = backend if isinstance(backend, Backend) else None
            self.found.append(Offered(source, known, problem))

    @contextmanager
    def _keeping_what_goes_wrong(self, source: Plugin) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if self.strict:
                message = f"plugin {source} cannot be loaded: {_in_a_line(error, source)}"
                raise ConfigError(message) from error
            trace = traceback.format_exc().rstrip()
            self.found.append(Offered(source, problem=_missing(error, source) or trace))


def _in_a_line(error: BaseException, source: Plugin) -> str:
    return _missing(error, source) or f"{type(error).__name__}: {error}"


def _missing(error: BaseException, source: Plugin) -> str:
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


def _described(point: importlib.metadata.EntryPoint) -> Plugin:
    dist = point.dist
    # Metadata that is not there raises, in one Python version or another, when it is asked for.
    found = dist is not None and (dist.read_text("METADATA") or dist.read_text("PKG-INFO"))
    if dist is None or not found:
        return Plugin(point.name, point.value, "an unnamed distribution", "?")
    metadata = dist.metadata
    return Plugin(point.name, point.value, metadata["Name"] or "?", metadata["Version"] or "?")


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


def _offers_of(relay: pluggy.HookRelay) -> list[object]:
    """Return what a plugin's hook offers; nothing if it only listens."""
    if not relay.pparallel_backends.get_hookimpls():
        return []
    answers = relay.pparallel_backends()
    if not answers:  # pluggy leaves out None
        message = "its pparallel_backends() returns None, not a list of pparallel.plugin.Backend"
        raise ConfigError(message)
    return [each for offered in answers for each in offered]


def _fault(
    backend: object, interfaces: Mapping[str, type[BackendConfig[Any]]], source: Plugin
) -> str:
    """Say why *backend* cannot be used; an empty string if it can."""
    if not isinstance(backend, Backend):
        return f"pparallel_backends() offers {backend!r}, which is no pparallel.plugin.Backend"
    if type(backend.interface_version) is not int:
        stated = backend.interface_version
        return f"{backend.target} has interface_version {stated!r}: write a whole number"
    if backend.interface_version != INTERFACE_VERSION:
        older = backend.interface_version < INTERFACE_VERSION
        upgrade = (source.package or source.module) if older else "pparallel"
        return (
            f"{backend.target} was written for version {backend.interface_version} of the"
            f" interfaces, and this pparallel has version {INTERFACE_VERSION}: upgrade {upgrade}"
        )
    config: object = backend.config
    if not (isinstance(config, type) and issubclass(config, BackendConfig)):
        return f"{config!r}, the config of {backend.target}, is no subclass of BackendConfig"
    where = f"{config.__module__}.{config.__qualname__}"
    base = interfaces.get(getattr(config, "interface", ""))
    if base is None or not issubclass(config, base):
        return f"{where} fills no interface: derive it from the base config of one"
    if name_of(config) is None:
        return f"{where} has no name: give its field 'backend' a default"
    if not all(part for part in backend.target.partition(":")):
        return f"{where} has target {backend.target!r}; write 'module:Class'"
    return _fault_of_sets(backend, where)


def _fault_of_sets(backend: Any, where: str) -> str:
    # Not every author has a type checker: whatever was given may be there.
    for name, found, one in (
        ("features", backend.features, "references"),
        ("reach", backend.reach, "processes"),
    ):
        if not isinstance(found, Set) or not all(isinstance(each, str) for each in found):
            example = f"frozenset({{{one!r}}})"
            return f"{where} has {name} {found!r}: write a set of text, such as {example}"
    if not isinstance(backend.requires, tuple | list):
        return f"{where} has requires {backend.requires!r}: write a tuple, such as ('torch',)"
    if unknown := sorted(backend.reach - EVERYWHERE):
        hint = did_you_mean(unknown[0], EVERYWHERE)
        allowed = ", ".join(sorted(EVERYWHERE))
        return f"{where} reaches {unknown[0]!r}, and there are only {allowed}.{hint}"
    return ""


def name_of(config: type[BackendConfig[Any]]) -> str | None:
    """Return the backend that a config class is for, ``None`` if it is a base config."""
    name = config.model_fields["backend"].default
    return name if isinstance(name, str) and name else None
