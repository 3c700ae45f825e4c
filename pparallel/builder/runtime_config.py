"""RuntimeConfig: what a whole job is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    SerializeAsAny,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import override

from pparallel.config import BackendConfig, Config, refusing, shown
from pparallel.errors import ConfigError, did_you_mean
from pparallel.interfaces.collective.config import CollectiveConfig
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.placer.config import PlacerConfig
from pparallel.interfaces.pool.config import PoolConfig
from pparallel.interfaces.reducer import ReducerConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel.registry import INTERFACES, Registry, default_registry
from pparallel.runtime.member import default_names

#: Keys of a job that a member may override; what else there is concerns all members.
OVERRIDES = tuple(sorted({*INTERFACES, "close_timeout", "extra"} - {"launcher"}))


class MemberConfig(Config, frozen=True):
    """One member of a job, when there is more to say of it than its name.

    Attributes:
        name: its name.
        env: environment variables that it starts with, where members are processes.
        resources: what it needs of a cluster, in the launcher's own terms.
        override: sections of a config, and ``close_timeout``, that differ from the job's.
    """

    name: str = Field(min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    override: dict[str, Any] = Field(default_factory=dict)


def _named(value: Any) -> Any:
    if not isinstance(value, str | Mapping | MemberConfig):
        raise PydanticCustomError("name", "a name is text, or a mapping with more of a member")
    return {"name": value} if isinstance(value, str) else value


def _counted(kinds: Mapping[Any, Any]) -> list[Any]:
    """Return the names of members given by kind and number: one alone is called as its kind."""
    names: list[str] = []
    for kind, given in kinds.items():
        number = int(given) if isinstance(given, str) and given.isdecimal() else given
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            message = f"the number of members of this kind, at least 1, not {shown(given)}"
            facts = {"message": message, "at": str(kind)}
            raise PydanticCustomError("unknown_key", "{message}", facts)
        names += [kind] if number == 1 else [f"{kind}-{each}" for each in range(number)]
    return names


def _extra_component(value: Any, info: ValidationInfo) -> Any:
    """Validate a component that says which interface it fills."""
    given = value.get("interface") if isinstance(value, Mapping) else None
    interface = getattr(value, "interface", given)
    if interface == "transport":
        message = "a job has one transport, its own section; extra holds other components"
        raise PydanticCustomError("interface", message)
    if isinstance(value, BackendConfig):
        return value
    if not isinstance(value, Mapping):
        raise PydanticCustomError("component", "a mapping, as {interface: pool, backend: thread}")
    if not isinstance(interface, str) or interface not in INTERFACES:
        raise PydanticCustomError(
            "interface",
            "{problem}{hint}",
            {
                "problem": f"interface {interface!r} does not exist"
                if interface is not None
                else "an extra component says which interface it fills",
                "hint": did_you_mean(str(interface), INTERFACES).replace(" ", ". ", 1)
                or f"; interface: one of {', '.join(INTERFACES)}",
            },
        )
    options = {key: each for key, each in value.items() if key != "interface"}
    return INTERFACES[interface].model_validate(options, context=info.context)


MemberList = list[Annotated[MemberConfig, BeforeValidator(_named)]]
_MEMBER_LIST: TypeAdapter[MemberList] = TypeAdapter(MemberList)
ExtraComponent = Annotated[SerializeAsAny[BackendConfig[Any]], PlainValidator(_extra_component)]


class RuntimeConfig(Config, frozen=True):
    """A whole job: its members, the components that each of them has, and what they run.

    Attributes:
        members: how many members the job has, or their names, or mappings with ``name``, ``env``,
            ``resources`` and ``override``; or a number for each kind of member, as
            ``{ps: 1, worker: 2}`` for ``ps``, ``worker-0`` and ``worker-1``; ``auto``: as many as
            torchrun started.
        target: what :func:`pparallel.launch` runs in every member, as ``"module:function"``.
        args: its further arguments: a list, or a mapping for keyword arguments.
        seed: number from which the random streams of all members are derived.
        close_timeout: seconds that a member which is done waits for the others; ``None``: as long
            as they live.
        directory: folder whose modules *target* may name; by default that of the config file.
        launcher: how members are started.
        transport: how members reach one another.
        serializer: how objects become bytes.
        pool: workers of each member.
        ordered_server: the versioned store.
        reducer: how members train one model.
        collective: operations that all members do together.
        placer: how models are assigned to devices.
        extra: further components by name; each says which ``interface`` it fills.
    """

    synonyms: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("world_size", "nprocs", "nproc_per_node", "num_members"), "members"),
        **dict.fromkeys(("num_processes", "processes", "workers", "num_workers"), "members"),
        **dict.fromkeys(("function", "main", "entrypoint"), "target"),
        **dict.fromkeys(("server", "parameter_server"), "ordered_server"),
    }
    members: int | MemberList | Literal["auto"] = 1
    target: str | None = None
    args: list[Any] | dict[str, Any] = Field(default_factory=list)
    seed: int | None = None
    close_timeout: float | None = Field(default=None, gt=0)
    directory: Path | None = None
    launcher: SerializeAsAny[LauncherConfig] | None = None
    transport: SerializeAsAny[TransportConfig] | None = None
    serializer: SerializeAsAny[SerializerConfig] | None = None
    pool: SerializeAsAny[PoolConfig] | None = None
    ordered_server: SerializeAsAny[OrderedServerConfig] | None = None
    reducer: SerializeAsAny[ReducerConfig] | None = None
    collective: SerializeAsAny[CollectiveConfig] | None = None
    placer: SerializeAsAny[PlacerConfig] | None = None
    extra: dict[str, ExtraComponent] = Field(default_factory=dict)

    @classmethod
    @override
    def _context(cls) -> dict[str, Any]:
        return default_registry().context

    @model_validator(mode="wrap")
    @classmethod
    def _find_backends(
        cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Validate with the installed backends where the context names no others."""
        if info.context is not None:
            return handler(value)
        with refusing():
            return cls.model_validate(value, context=cls._context())

    @field_validator("members", mode="before")
    @classmethod
    def _check_members(cls, members: Any) -> Any:
        if isinstance(members, Mapping):
            members = _counted(members)
        if isinstance(members, bool) or not isinstance(members, (int, str, list, tuple)):
            message = "give a number, a list of names or mappings, numbers by kind, or 'auto'"
            raise _bad_members(message, members)
        if isinstance(members, int) and members < 1:
            raise _bad_members("a job has at least one member", members)
        if isinstance(members, str):
            if members.isdigit():
                return cls._check_members(int(members))
            if members != "auto":
                raise _bad_members("give a number, a list of names, or 'auto'", members)
            return members
        if isinstance(members, int):
            return members
        if not members:
            raise _bad_members("a job has at least one member", members)
        # Not by the union of the field, which adds words of its own to the paths.
        described = _MEMBER_LIST.validate_python(list(members))
        names = [each.name for each in described]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise _bad_members(f"the name {twice[0]!r} is given to two members", names)
        return described

    @field_validator("args", mode="before")
    @classmethod
    def _check_args(cls, args: Any) -> Any:
        if isinstance(args, list | tuple | Mapping):
            return dict(args) if isinstance(args, Mapping) else list(args)
        raise PydanticCustomError("args", "a list or a mapping")

    @classmethod
    @override
    def _hint(cls, key: str, value: object) -> str:
        if key != "backend":
            return super()._hint(key, value)
        found = default_registry().interfaces(value) or ["pool"]
        section = f'write {{"{found[0]}": {{"backend": "{value}"}}}}'
        return f'a backend goes into a section: {section} or build("{found[0]}:{value}")'

    @field_validator("extra", mode="after")
    @classmethod
    def _check_extra(cls, extra: dict[str, BackendConfig[Any]]) -> dict[str, BackendConfig[Any]]:
        for name in extra:
            if name in INTERFACES:
                message = "{name} is a section of its own: put it beside extra"
                raise PydanticCustomError("extra", message, {"name": repr(name)})
        return extra

    @property
    def names(self) -> list[str]:
        """The members' names by rank; with ``members: auto`` they are not known yet."""
        if isinstance(self.members, list):
            return [each.name for each in self.members]
        return list(default_names(self.members if isinstance(self.members, int) else 1))

    def described(self) -> list[MemberConfig]:
        """Return a description of each member by rank."""
        if isinstance(self.members, list):
            return self.members
        return [MemberConfig(name=name) for name in self.names]

    def section(self, name: str) -> BackendConfig[Any] | None:
        """Return the config of a component, or ``None`` if the config does not give it."""
        if name in INTERFACES:
            config: BackendConfig[Any] | None = getattr(self, name)
            return config
        return self.extra.get(name)

    def of_member(self, name: str, registry: Registry | None = None) -> RuntimeConfig:
        """Return this config with what member *name* overrides.

        Raises:
            ConfigError: with the member's name in the path of what it cannot override.
        """
        override = next((each.override for each in self.described() if each.name == name), {})
        if not override:
            return self
        raw = {key: getattr(self, key) for key in self.model_fields_set}
        merged = {**raw, **{key: self._merged(key, each) for key, each in override.items()}}
        context = (registry or default_registry()).context
        with refusing(path=f"members.{name}.override"):
            if refused := [_not_overridden(key) for key in override if key not in OVERRIDES]:
                raise ConfigError.of_all(refused)
            return type(self).model_validate(merged, context=context)

    def _merged(self, key: str, value: Any) -> Any:
        given = self.section(key) if key in INTERFACES else None
        if given is not None:
            value = INTERFACES[key].expanded(value)
        if given is None or not isinstance(value, Mapping):
            return value
        if value.get("backend", given.backend) != given.backend:
            return value
        return {**{each: getattr(given, each) for each in type(given).model_fields}, **value}


def _not_overridden(key: str) -> ConfigError:
    allowed = f"a member may override {', '.join(OVERRIDES)}"
    if key in RuntimeConfig.model_fields:
        return ConfigError(f"it is the same in all members; {allowed}", path=key)
    hint = did_you_mean(key, OVERRIDES)
    return ConfigError(f"unknown key {key!r}" + (f".{hint}" if hint else f"; {allowed}"), path=key)


def _bad_members(message: str, members: Any) -> PydanticCustomError:
    return PydanticCustomError(
        "members", "{message}", {"message": message, "members": repr(members)}
    )
