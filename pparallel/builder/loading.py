"""From files and mappings to configs, and from configs to objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from pparallel.builder.blueprint import Blueprint
from pparallel.builder.components import WORDS
from pparallel.builder.runtime import Runtime
from pparallel.builder.runtime_config import RuntimeConfig
from pparallel.builder.sources import FILES, Overrides, read
from pparallel.config import BackendConfig, refusing, secret_names
from pparallel.errors import ConfigError, did_you_mean
from pparallel.registry import (
    INTERFACES,
    Registry,
    default_registry,
    how_to_build,
    interface_class,
)
from pparallel.runtime import environment
from pparallel.runtime.member import Member, default_names

T = TypeVar("T")
C = TypeVar("C", bound=BackendConfig[Any])
#: a file, a mapping, a typed config, the number of members, or nothing
Source = RuntimeConfig | str | Path | Mapping[str, Any] | int | None

_NAME = re.compile(r"(?:(\w+):)?([\w-]+)")  #: of a backend; a file has a suffix or a folder


@overload
def load(
    source: Source = None,
    raw: None = None,
    /,
    *,
    overrides: Overrides = (),
    registry: Registry | None = None,
) -> RuntimeConfig: ...


@overload
def load(source: type[C], raw: Mapping[str, Any], /, *, registry: Registry | None = None) -> C: ...


def load(
    source: Source | type[BackendConfig[Any]] = None,
    raw: Mapping[str, Any] | None = None,
    /,
    *,
    overrides: Overrides = (),
    registry: Registry | None = None,
) -> Any:
    """Return the config that *source* holds.

    ``load("job.yaml")`` (also .toml and .json), ``load({"pool": {"size": 4}})`` and ``load()``
    give a :class:`RuntimeConfig`; ``load(PoolConfig, {"backend": "thread"})`` gives the config of
    one component. Files, mappings and the empty config take overrides from the environment
    (``PPARALLEL__POOL__SIZE=8``), then from *overrides* (``"pool.size=8"``, or
    ``{"pool.size": 8}``); typed configs do not. A number is that of the members.

    Raises:
        ConfigError: with the path of each key at fault, and what is allowed there.
    """
    registry = registry or default_registry()
    if isinstance(source, type) and issubclass(source, BackendConfig) and raw is not None:
        with refusing():
            return source.model_validate(raw, context=registry.context)
    return load_with(source, {}, overrides, registry)


def load_with(
    source: object,
    keys: Mapping[str, Any],
    overrides: Overrides,
    registry: Registry,
    member: Member | None = None,
) -> RuntimeConfig:
    """Return the config of the job that *source* holds, with *keys* put into it.

    Where no *member* is given, torchrun may have started this process as one.

    Raises:
        ConfigError: it holds none.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"give a list or a mapping: overrides=[{overrides!r}]")
    if isinstance(source, RuntimeConfig):
        changed = [*(_key(each) for each in overrides), *keys]
        if changed:
            message = f"override {changed[0]!r} cannot apply to a typed config: change the config"
            raise ConfigError(message)
        config, label = source, ""
    else:
        mapping, label = read(_checked(source, registry), overrides, keys)
        if isinstance(source, (str, Path)):
            mapping.setdefault("directory", str(Path(source).resolve().parent))
        with refusing(label):
            config = RuntimeConfig.model_validate(mapping, context=registry.context)
        environment.take_out(secret_names())
    found = member_by_torchrun(config) if member is None else None
    with refusing(label):
        torchrun = found is not None and found.world_size > 1
        Blueprint(config, registry, torchrun=torchrun).check()
        _check_overrides(config, registry)
    return config


def _key(override: str) -> str:
    return override.partition("=")[0]


def _checked(source: Any, registry: Registry) -> Any:
    """Return *source*, if it can be a job's config, in a form that can be read.

    Raises:
        ConfigError: it is something else that people give.
    """
    if isinstance(source, int) and not isinstance(source, bool):
        return {"members": source}
    if isinstance(source, type):
        if issubclass(source, BackendConfig):
            raise ConfigError(f"give a config, not its class: {source.__name__}(...)")
        if how := how_to_build(source):
            raise ConfigError(how)
    if isinstance(source, str) and (named := _NAME.fullmatch(source)):
        message = f"{source!r} names no file: a config ends in one of {', '.join(FILES)}"
        if named[1] and named[1] not in INTERFACES:
            raise ConfigError(f"{message}; give it before the target, or as its target: {source}")
        raise ConfigError(f"{message}; a backend is the value of a section, as pool={source!r}")
    return source


def _check_overrides(config: RuntimeConfig, registry: Registry) -> None:
    """Refuse what members cannot override, before any of them starts.

    Raises:
        ConfigError: with the member's name in the path of each key.
    """
    refused: list[ConfigError] = []
    for each in config.described():
        if not each.override:
            continue
        try:
            changed = Blueprint(config.of_member(each.name, registry), registry)
            with refusing(path=f"members.{each.name}.override"):
                changed.check()
                _check_transport(config.transport, changed.config.transport)
        except ConfigError as error:
            refused.append(error)
    if refused:
        raise ConfigError.of_all(refused)


def _check_transport(job: BackendConfig[Any] | None, member: BackendConfig[Any] | None) -> None:
    shared, own = (None if each is None else each.backend for each in (job, member))
    if own != shared:
        known = f", {shared}, not {own}" if shared else ": give the job a section transport too"
        message = f"it is the same in all members{known}"
        raise ConfigError(message, path="transport.backend")


@overload
def build(
    config: BackendConfig[T],
    *,
    member: Member | None = None,
    registry: Registry | None = None,
    **parts: object,
) -> T: ...


@overload
def build(
    config: str, *, member: Member | None = None, registry: Registry | None = None, **options: Any
) -> Any: ...


@overload
def build(
    config: RuntimeConfig | Path | Mapping[str, Any] | int | None = None,
    *,
    member: Member | None = None,
    registry: Registry | None = None,
    **keys: Any,
) -> Runtime: ...


def build(
    config: BackendConfig[Any] | Source = None,
    *,
    member: Member | None = None,
    registry: Registry | None = None,
    **options: Any,
) -> Any:
    """Build what *config* describes; nothing is opened before it is entered with ``with``.

    A file, a mapping, a :class:`RuntimeConfig`, a number of members or nothing gives a
    :class:`Runtime`, and *options* are keys of the config: ``build(members=1, pool="process")``.
    The name of a backend (``"process"``, or ``"pool:ray"`` where several interfaces have one of
    that name), or the config of one component, gives that component.

    Args:
        config: what to build.
        member: which member of the job to be; by default what the launcher or torchrun left.
        registry: where backends are found; by default among the installed plugins.
        options: of a backend by name: its options and parts. Of the config of a component: its
            parts, such as ``serializer=...``. A part is a ready object, which the caller opens and
            closes, or the name or the config of a backend.

    Raises:
        ConfigError: the config cannot be built; the message says why and what to write.
        MissingDependencyError: a backend's library is not installed.
    """
    registry = registry or default_registry()
    if isinstance(config, str) and (named := _NAME.fullmatch(config)):
        config, options = _configured(*_found(named[1], named[2], registry), options, registry)
    if isinstance(config, BackendConfig):
        alone = Runtime(RuntimeConfig(), member or Member(), registry)
        return alone.make_alone(config, options)
    loaded = load_with(config, options, (), registry, member)
    found = member_of(loaded, member)
    torchrun = member is None and found.world_size > 1  # nothing else gives a process a place
    return Runtime(loaded, found, registry, torchrun=torchrun)


def _found(interface: str | None, name: str, registry: Registry) -> tuple[str, str]:
    """Return the interface and the name of a backend that is given by name.

    A launcher is meant only where nothing else has that name, as jobs start by ``launch``.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if interface is not None:
        return interface, name
    found = registry.interfaces(name)
    if len(found) > 1 and found[-1] == "launcher":
        found.pop()
    if len(found) == 1:
        return found[0], name
    if found:
        kinds = ", ".join(f"{_article(each)} {each.replace('_', ' ')}" for each in found)
        raise ConfigError(f'{name!r} is {kinds}: write build("{found[0]}:{name}")')
    if name in INTERFACES:
        raise ConfigError(how_to_build(interface_class(INTERFACES[name])))
    hint = did_you_mean(name, {each.name for each in registry.offers()})
    hint = hint or f" 'pparallel backends' lists them; a config file ends in {', '.join(FILES)}."
    raise ConfigError(f"no backend {name!r}.{hint}")


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _configured(
    interface: str, name: str, options: Mapping[str, Any], registry: Registry
) -> tuple[BackendConfig[Any], dict[str, Any]]:
    """Return the config of a backend with its *options*, and those of them that are parts."""
    cls = registry.config(interface, name)

    def is_part(key: str, value: object) -> bool:
        if key not in cls.model_fields:
            return key in WORDS
        return key in INTERFACES and isinstance(value, interface_class(INTERFACES[key]))

    parts = {key: each for key, each in options.items() if is_part(key, each)}
    own = {key: each for key, each in options.items() if key not in parts}
    with refusing():
        return cls.model_validate({**own, "backend": name}, context=registry.context), parts


# -- who this process is in the job ----------------------------------------------------------------


def member_of(config: RuntimeConfig, member: Member | None) -> Member:
    """Return the member to be: given, or torchrun's, or the only one.

    Raises:
        ConfigError: there are several members and nothing says which one this is.
    """
    if member is not None:
        _check_member(config, member)
        return member
    if (found := member_by_torchrun(config)) is not None:
        return found
    if config.members == "auto":
        message = "'auto' takes the members from torchrun, and its variables are not set"
        raise ConfigError(message, path="members")
    if len(config.names) > 1:
        message = (
            f"there are {len(config.names)} members and nothing says which one this process is: "
            "start them with pparallel.launch(config, target) or 'pparallel run', "
            "or give build(config, member=pparallel.Member(...))"
        )
        raise ConfigError(message, path="members")
    return Member(name=config.names[0])


def member_by_torchrun(config: RuntimeConfig) -> Member | None:
    """Return the member that torchrun's variables describe, if they are for this config."""
    found = environment.torchrun()
    if found is None:
        return None
    from pparallel.runtime.rpc import context

    size = found.world_size
    if config.members != "auto" and (len(config.names) != size or context.count()):
        return None
    names = default_names(size) if config.members == "auto" else tuple(config.names)
    return Member(names[found.rank], found.rank, found.local_rank, size, names, found.address)


def _check_member(config: RuntimeConfig, member: Member) -> None:
    if config.members != "auto" and list(member.names) != config.names:
        message = f"the config has members {config.names}, the member given {list(member.names)}"
        raise ConfigError(message, path="members")
