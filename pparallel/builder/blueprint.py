"""What a config leaves out, and what in it cannot work together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pparallel.config import BackendConfig
from pparallel.errors import ConfigError
from pparallel.plugin import Backend, Reach
from pparallel.registry import INTERFACES, Registry

if TYPE_CHECKING:
    from pparallel.builder.runtime_config import RuntimeConfig

Place = Literal["alone"] | Reach

#: What a section that is not given defaults to, by where the members are.
_DEFAULTS: dict[str, dict[Place, str]] = {
    "transport": {"alone": "local", "threads": "local", "processes": "ipc", "machines": "zmq"},
    "ordered_server": {
        "alone": "memory",
        "threads": "hosted",
        "processes": "hosted",
        "machines": "hosted",
    },
    "collective": {"alone": "local", "threads": "local", "processes": "shm", "machines": "gloo"},
}

#: Interfaces whose components meet those of other members, in the order in which they open. A
#: collective that no section asks for is left until it is used: some are costly.
_MEETING = ("collective", "ordered_server", "reducer")


class Blueprint:
    """A config with its defaults filled in, for members that live in a known place."""

    def __init__(
        self, config: RuntimeConfig, registry: Registry, *, torchrun: bool = False
    ) -> None:
        self.config = config
        self._registry = registry
        self._torchrun = torchrun
        self.place: Place = self._find_place()

    def check(self) -> None:
        """Refuse what cannot work where the members live.

        Raises:
            ConfigError: with the path of the option and what to write instead.
        """
        if self.place == "alone":
            return
        for name in (*INTERFACES, *self.config.extra):
            given = self.config.section(name)
            if given is not None and given.interface != "launcher":
                self._check_reach(name if name in INTERFACES else f"extra.{name}", given)
        self._check_members()

    def component(self, name: str) -> BackendConfig[Any]:
        """Return the config of a component, given or default.

        Raises:
            UnknownBackendError: the default's plugin is not installed.
            KeyError: the config has no component of that name.
        """
        if name not in INTERFACES and name not in self.config.extra:
            known = ", ".join((*INTERFACES, *self.config.extra))
            message = f"no component {name!r}; this runtime has {known}"
            raise KeyError(message)
        given = self.config.section(name)
        if given is not None:
            return given
        backend = (
            self._launchers_defaults().get(name)
            or _DEFAULTS.get(name, {}).get(self.place)
            or self._registry.default(name)
        )
        cls = self._registry.config(name, backend)
        if name == "ordered_server" and "host" in cls.model_fields:
            return cls.model_validate({"host": self._default_host()})
        return cls.model_validate({})

    def meeting(self) -> list[str]:
        """Return the components that open on entering, with those of the other members."""
        names = [
            name for name in _MEETING if name != "collective" or self.config.collective is not None
        ]
        extra = self.config.extra.items()
        return names + [name for kind in _MEETING for name, each in extra if each.interface == kind]

    def _find_place(self) -> Place:
        if self._torchrun:
            return "machines"
        if len(self.config.names) == 1:
            return "alone"
        reach = self._launcher().reach
        for place in ("machines", "processes"):
            if place in reach:
                return place
        return "threads"

    def _launchers_defaults(self) -> Mapping[str, str]:
        """Return the backends that the launcher names for the members that it starts."""
        if self._torchrun or self.place == "alone":
            return {}
        return self._launcher().defaults

    def _launcher(self) -> Backend:
        launcher = self.config.launcher
        name = launcher.backend if launcher else self._registry.default("launcher")
        return self._registry.find("launcher", name)

    def _default_host(self) -> str:
        primary = getattr(self.config.reducer, "primary", None)
        primaries = getattr(self.config.reducer, "primaries", None) or self.config.names
        return primary or primaries[0]

    def _check_reach(self, path: str, given: BackendConfig[Any]) -> None:
        backend = self._registry.find(given.interface, given.backend)
        for name, inside in given:
            if isinstance(inside, BackendConfig) and inside.interface == given.interface:
                self._check_reach(f"{path}.{name}", inside)  # what a wrapper wraps
        if self.place in backend.reach:
            return
        fits = [
            offer.name
            for offer in self._registry.offers()
            if offer.interface == given.interface and self.place in offer.reach
        ]
        launcher = self.config.launcher
        how = f"launcher {launcher.backend!r}" if launcher else "the launcher"
        among = " or ".join(sorted(backend.reach))
        message = (
            f"{given.backend!r} works among {among} only, and {how} puts members in {self.place}; "
            f"choose one of: {', '.join(fits) or 'none is installed'}"
        )
        raise ConfigError(message, path=f"{path}.backend")

    def _check_members(self) -> None:
        name, features = self._launcher().name, self._launcher().features
        for number, member in enumerate(self.config.described()):
            if member.env and "env" not in features:
                message = (
                    f"launcher {name!r} cannot give members an environment of their own: "
                    "they share one process; use launcher: {backend: process}"
                )
                raise ConfigError(message, path=f"members.{number}.env")
            if member.resources and "resources" not in features:
                message = f"launcher {name!r} places nothing by resources; leave them out"
                raise ConfigError(message, path=f"members.{number}.resources")
