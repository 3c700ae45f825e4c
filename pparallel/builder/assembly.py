"""Make components with their parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pparallel.config import BackendConfig, refusing, shown
from pparallel.errors import ConfigError
from pparallel.interfaces.pool import Pool
from pparallel.registry import INTERFACES, interface_class
from pparallel.runtime.bars import metering
from pparallel.runtime.events.tasks import watch_tasks

if TYPE_CHECKING:
    from pparallel.registry import Registry
    from pparallel.runtime.events import Events
    from pparallel.runtime.member import Member
    from pparallel.runtime.rpc import RpcGroup
    from pparallel.runtime.streams import Streams

PARTS = ("serializer", "pool", "ordered_server", "collective")
WORDS = (*PARTS, "group", "name", "streams", "events")


class Assembly:
    """The components of one runtime, each made once, and the order in which to open them.

    A component is handed the parts that its constructor asks for by keyword. A part is the one
    that its config describes, then its own; else the runtime's, shared.
    """

    def __init__(
        self,
        member: Member,
        registry: Registry,
        config_of: Callable[[str], BackendConfig[Any]],
        group: Callable[[str], RpcGroup],
        streams: Streams,
        events: Events,
    ) -> None:
        self._member = member
        self._registry = registry
        self._config_of = config_of
        self._group = group
        self._streams = streams
        self._events = events
        self._underway: list[str] = []
        self.grouped = False  # whether a component was handed a group
        self.made: dict[str, Any] = {}  # in the order in which they open: parts first
        self.parts: dict[str, list[str]] = {}

    def component(self, name: str) -> Any:
        """Return the runtime's component of that name, made now if need be."""
        if name not in self.made:
            self.make(name, self._config_of(name), {})
        return self.made[name]

    def make(self, name: str, config: BackendConfig[Any], given: Mapping[str, Any]) -> Any:
        """Make a component under *name*.

        Parts in *given* are built from what describes them, or ready and not ours to close.

        Raises:
            ConfigError: a part cannot be found, needs itself, or is no object of its interface.
            MissingDependencyError: the backend's library is not installed.
            TypeError: *given* has a part that the component does not take.
        """
        if name in self._underway:
            circle = " needs ".join((*self._underway, name))
            message = f"components need one another in a circle: {circle}"
            raise ConfigError(message, path=name)
        backend = self._registry.find(config.interface, config.backend)
        config = self._completed(config)
        cls = self._registry.load(backend)
        wanted = _wanted(cls)
        if unknown := sorted(set(given) - wanted):
            takes = ", ".join(sorted(wanted)) or "none"
            message = f"{cls.__name__} takes no part {unknown[0]!r}; it takes: {takes}"
            if unknown[0] in type(config).model_fields:
                option = f"{type(config).__name__}({unknown[0]}=...)"
                message = f"{unknown[0]!r} is an option of the config: {option}"
            raise TypeError(message)
        given = {part: self._given(part, each) for part, each in given.items()}
        self.parts[name] = []
        self._underway.append(name)
        try:
            parts = {
                part: given[part]
                if part in given and not isinstance(given[part], BackendConfig)
                else self._part(name, config, part, given.get(part))
                for part in WORDS
                if part in wanted
            }
        finally:
            self._underway.pop()
        _check_constructor(cls, parts)
        component = cls(config, member=self._member, **parts)
        if isinstance(component, Pool):
            watch_tasks(self._events, component, name)
            component.measured_by(metering(getattr(config, "progress", False)))
        self.made[name] = component
        return component

    def _given(self, part: str, value: object) -> Any:
        """Return a part that is ready, or the config that *value* is or stands for.

        Raises:
            ConfigError: it is neither.
        """
        if part not in PARTS:
            return value
        base, interface = INTERFACES[part], interface_class(INTERFACES[part])
        if isinstance(value, interface):
            return value
        if not isinstance(base.expanded(value), Mapping | base):
            name = interface.__name__
            message = f"a {name}, the name of a backend, or a config of one, not {shown(value)}"
            raise ConfigError(message, path=part)
        with refusing(path=part):
            return base.model_validate(value, context=self._registry.context)

    def _part(self, name: str, config: BackendConfig[Any], part: str, given: Any) -> Any:
        if part == "name":
            return name
        if part == "streams":
            return self._streams.sub(name)
        if part == "events":
            return self._events
        if part == "group":
            self.grouped = True
            return self._group(name)
        nested = given or getattr(config, part, None)
        if isinstance(nested, BackendConfig):
            self.parts[name].append(f"{name}.{part}")
            return self.make(f"{name}.{part}", nested, {})
        self.parts[name].append(part)
        return self.component(part)

    def _completed(self, config: BackendConfig[Any]) -> BackendConfig[Any]:
        """Return *config* as its backend's: where it was made, nobody may have known that one."""
        cls = self._registry.config(config.interface, config.backend)
        if isinstance(config, cls):
            return config
        given = {name: getattr(config, name) for name in config.model_fields_set}
        with refusing():
            return cls.model_validate(
                {**given, "backend": config.backend}, context=self._registry.context
            )


def _check_constructor(cls: type, parts: Mapping[str, Any]) -> None:
    """Refuse a constructor that cannot be called as all backends' are.

    Raises:
        ConfigError: it takes other arguments.
    """
    signature = inspect.signature(cls)
    try:
        signature.bind(None, member=None, **parts)
    except TypeError as error:
        plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        takes = signature.replace(parameters=plain, return_annotation=signature.empty)
        message = (
            f"{cls.__module__}.{cls.__qualname__}{takes} cannot be called as a backend's class is,"
            f" ({', '.join(('config', '*', 'member', *parts))}): {error}. Parts are asked for by"
            f" keyword, after *: {', '.join(WORDS)}"
        )
        raise ConfigError(message) from error


def _wanted(cls: type) -> set[str]:
    parameters = inspect.signature(cls).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} & set(WORDS)
