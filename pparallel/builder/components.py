"""The components of one runtime: made with their parts, opened, and closed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pparallel.config import BackendConfig, refusing, shown
from pparallel.errors import ConfigError
from pparallel.interfaces.pool import Pool, Progress
from pparallel.interfaces.resource import Resource
from pparallel.registry import INTERFACES, interface_class

if TYPE_CHECKING:
    from pparallel.registry import Registry
    from pparallel.runtime.events import Events
    from pparallel.runtime.member import Member
    from pparallel.runtime.rpc import RpcGroup
    from pparallel.runtime.streams import Streams

logger = logging.getLogger(__name__)

PARTS = ("serializer", "pool", "ordered_server", "collective")
WORDS = (*PARTS, "group", "name", "streams", "events")


class Components:
    """The components of one runtime: each made once, opened parts first, closed clients first.

    A component is handed the parts that its constructor asks for by keyword. A part is the one
    that its config describes, then its own; else the runtime's, shared.

    Args:
        member: whose they are.
        registry: where backends are found.
        config_of: returns the config of the component of a name.
        group: returns the group of all members under a name; it need not be open.
        streams: those of the member.
        events: those of the member.
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
        self._made: dict[str, Any] = {}  # in the order in which they open: parts first
        self._parts: dict[str, list[str]] = {}
        self._opened: list[str] = []

    # -- making -------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return how many were made."""
        return len(self._made)

    def __getitem__(self, name: str) -> Any:
        """Return the component of that name, made now if need be; it may not be open."""
        if name not in self._made:
            self.make(name, self._config_of(name), {})
        return self._made[name]

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
        self._parts[name] = []
        self._underway.append(name)
        try:
            parts = {
                part: self._part(name, config, part, given.get(part))
                for part in WORDS
                if part in wanted
            }
        finally:
            self._underway.pop()
        _check_constructor(cls, parts)
        component = cls(config, member=self._member, **parts)
        if isinstance(component, Pool):
            self._watch(name, component, getattr(config, "progress", False))
        self._made[name] = component
        return component

    def _watch(self, name: str, pool: Pool, progress: Progress) -> None:
        from pparallel.runtime.task_events import watch_tasks

        watch_tasks(self._events, pool, name)
        if progress is not False:
            from pparallel.runtime.bars import metering

            pool.measured_by(metering(progress))

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
        if given is not None and not isinstance(given, BackendConfig):
            return given
        if part == "name":
            return name
        if part == "streams":
            return self._streams.sub(name)
        if part == "events":
            return self._events
        if part == "group":
            return self._group(f"component/{name}")
        nested = given or getattr(config, part, None)
        if isinstance(nested, BackendConfig):
            self._parts[name].append(f"{name}.{part}")
            return self.make(f"{name}.{part}", nested, {})
        self._parts[name].append(part)
        return self[part]

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

    # -- life ---------------------------------------------------------------------------------

    def open(self, but: str | None = None) -> None:
        """Open what was made and is not open yet; all *but* one."""
        for name, component in list(self._made.items()):
            if isinstance(component, Resource) and name not in (*self._opened, but):
                component.__enter__()
                self._opened.append(name)

    def depart(self) -> None:
        """Have all that is open tell the others that this member is done."""
        for name in reversed(self._opened):
            self._made[name].depart()

    def close(self, between: Callable[[], None]) -> None:
        """Close in reverse order: what only calls others, then *between*, then the hosts."""
        hosts = self._hosts()
        with ExitStack() as last:
            self._push(last, hosts=hosts, hosting=True)
            with ExitStack() as first:
                self._push(first, hosts=hosts, hosting=False)
            between()

    def abandon(self, error: BaseException) -> None:
        """Close all, as *error* makes it; what goes wrong in that is logged."""
        for name in reversed(self._opened):
            try:
                self._made[name].__exit__(type(error), error, error.__traceback__)
            except Exception:
                logger.exception("%s could not be closed", name)

    def terminate_pools(self) -> None:
        """Wake whoever waits for a pool; safe to call again, from any thread."""
        for name in list(self._opened):
            if isinstance(component := self._made[name], Pool):
                component.terminate()

    def _push(self, stack: ExitStack, *, hosts: set[str], hosting: bool) -> None:
        for name in self._opened:
            if (name in hosts) == hosting:
                stack.push(self._made[name])

    def _hosts(self) -> set[str]:
        """Return what closes last: components that others call, and the parts these stand on."""
        hosts = [name for name in self._opened if self._made[name].hosting]
        found: set[str] = set()
        while hosts:
            name = hosts.pop()
            found.add(name)
            hosts += [part for part in self._parts[name] if part not in found]
        return found


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
