"""From files and mappings to configs, and from configs to objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from pparallel.builder import identity
from pparallel.builder.blueprint import Blueprint
from pparallel.builder.runtime import Runtime
from pparallel.builder.runtime_config import RuntimeConfig
from pparallel.builder.sources import read
from pparallel.config import BackendConfig, narrowing, refusing, secret_names
from pparallel.errors import ConfigError
from pparallel.registry import Registry, default_registry
from pparallel.runtime import environment
from pparallel.runtime.member import Member

T = TypeVar("T")
C = TypeVar("C", bound=BackendConfig[Any])
Source = RuntimeConfig | str | Path | Mapping[str, Any] | None


@overload
def load(
    source: Source = None,
    raw: None = None,
    /,
    *,
    overrides: Iterable[str] = (),
    registry: Registry | None = None,
) -> RuntimeConfig: ...


@overload
def load(source: type[C], raw: Mapping[str, Any], /, *, registry: Registry | None = None) -> C: ...


def load(
    source: Source | type[BackendConfig[Any]] = None,
    raw: Mapping[str, Any] | None = None,
    /,
    *,
    overrides: Iterable[str] = (),
    registry: Registry | None = None,
) -> Any:
    """Return the config that *source* holds.

    ``load("job.yaml")`` (also .toml and .json), ``load({"pool": {"size": 4}})`` and ``load()``
    give a :class:`RuntimeConfig`; ``load(PoolConfig, {"backend": "thread"})`` gives the config of
    one component. Files, mappings and the empty config take overrides from the environment
    (``PPARALLEL__POOL__SIZE=8``), then from *overrides* (``"pool.size=8"``); typed configs do not.

    Raises:
        ConfigError: with the path of each key at fault, and what is allowed there.
    """
    registry = registry or default_registry()
    if isinstance(source, type):
        with narrowing(registry.narrow), refusing():
            return source.model_validate(raw)
    if isinstance(source, RuntimeConfig):
        if refused := list(overrides):
            key = refused[0].partition("=")[0]
            message = f"override {key!r} cannot apply to a typed config: change the config"
            raise ConfigError(message)
        config, label = source, ""
    else:
        mapping, label = read(source, overrides)
        if isinstance(source, (str, Path)):
            mapping.setdefault("directory", str(Path(source).resolve().parent))
        with narrowing(registry.narrow), refusing(label):
            config = RuntimeConfig.model_validate(mapping)
        environment.take_out(secret_names())
    with refusing(label):
        Blueprint(config, registry).check()
        _check_overrides(config, registry)
    return config


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
    config: Source = None, *, member: Member | None = None, registry: Registry | None = None
) -> Runtime: ...


def build(
    config: BackendConfig[Any] | Source = None,
    *,
    member: Member | None = None,
    registry: Registry | None = None,
    **parts: object,
) -> Any:
    """Build what *config* describes; nothing is opened before it is entered with ``with``.

    A file, a mapping, a :class:`RuntimeConfig` or nothing gives a :class:`Runtime`; the config of
    one component gives that component, whose *parts* may be given ready made.

    Args:
        config: what to build.
        member: which member of the job to be; by default what the launcher or torchrun left.
        registry: where backends are found; by default among the installed plugins.
        parts: objects that the component is to use, such as ``serializer=...``; the caller opens
            and closes them.

    Raises:
        ConfigError: the config cannot be built; the message says why and what to write.
        MissingDependencyError: a backend's library is not installed.
    """
    registry = registry or default_registry()
    if isinstance(config, BackendConfig):
        alone = Runtime(RuntimeConfig(), member or Member(), registry)
        return alone.make_alone(config, parts)
    if parts:
        message = f"parts ({', '.join(parts)}) go with the config of one component, not a runtime"
        raise TypeError(message)
    loaded = load(config, registry=registry)
    found = identity.resolve(loaded, member)
    torchrun = member is None and found.world_size > 1  # nothing else gives a process a place
    return Runtime(loaded, found, registry, torchrun=torchrun)
