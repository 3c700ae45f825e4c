"""Run a function in every member of a job."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from pydantic import SecretStr

from pparallel.builder.blueprint import Blueprint
from pparallel.builder.loading import (
    Source,
    build,
    load_with,
    member_by_torchrun,
    member_of,
)
from pparallel.builder.runtime import Runtime
from pparallel.builder.runtime_config import RuntimeConfig
from pparallel.builder.sources import Overrides
from pparallel.errors import (
    ConfigError,
    RemoteError,
    SerializationError,
    did_you_mean,
    is_consequence,
)
from pparallel.interfaces.launcher import Launcher, RankSpec, StartMethod
from pparallel.interfaces.pool import name_of
from pparallel.interfaces.transport import Transport
from pparallel.registry import default_registry
from pparallel.runtime import environment, stopping
from pparallel.runtime.events import Event, Listener
from pparallel.runtime.member import Member, local_rank

logger = logging.getLogger(__name__)

#: the module that is being imported for its target
_importing: ContextVar[str] = ContextVar("pparallel_importing", default="")

Target = Callable[..., Any] | str  #: the function itself, or "module:function"


@dataclass(frozen=True, slots=True)
class _Job:
    """What each rank is told."""

    config: RuntimeConfig
    target: Target
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    kinds: tuple[type[Event], ...]  # of events for the listener; none: all
    address: str = ""
    keys: Mapping[str, SecretStr] = field(default_factory=dict, repr=False)


def launch(
    config: Source = None,
    target: Target | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    overrides: Overrides = (),
    listener: Listener | None = None,
    kinds: Iterable[type[Event]] = (),
    **keys: Any,
) -> list[Any]:
    """Run ``target(rt, *args, **kwargs)`` in every member and return the results by rank.

    Under torchrun, run it in this process alone and return ``[its result]``. The first failure
    ends all members and is raised here.

    Args:
        config: as for :func:`pparallel.build`; a number is that of the members.
        target: a function, or ``"module:function"``; by default the config's ``target``.
        args: positional arguments; by default those of the config.
        kwargs: keyword arguments; by default those of the config.
        overrides: options as ``"pool.size=8"``, or ``{"pool.size": 8}``, for a file or mapping.
        listener: called in this process with each event of every member, in any thread.
        kinds: classes of events that it is called with; none at all means every event.
        keys: keys of the config, as ``launcher="process"``; not for a :class:`RuntimeConfig`.

    Raises:
        ConfigError: the config cannot be built, its target cannot be imported or is an
            ``async def`` function, or *args* is no list or tuple.
        Exception: what the first member that failed raised.
    """
    _check_call(config, keys)
    loaded = load_with(config, keys, overrides, default_registry())
    target = target if target is not None else loaded.target
    if target is None:
        message = "there is nothing to run: give target: module:function, or launch(config, f)"
        raise ConfigError(message, path="target")
    given = loaded.args
    if args is None:
        args = given if isinstance(given, list) else []
    if kwargs is None:
        kwargs = given if isinstance(given, dict) else {}
    if isinstance(args, str | bytes | Mapping) or not isinstance(args, Iterable):
        named = f"kwargs={args!r}, or " if isinstance(args, Mapping) else ""
        message = f"give {named}a list or a tuple: ({args!r},), not {args!r}"
        raise ConfigError(message, path="args")
    if not isinstance(kwargs, Mapping):
        raise ConfigError(f"give a mapping of keyword arguments, not {kwargs!r}", path="kwargs")
    job = _Job(loaded, target, tuple(args), kwargs, tuple(kinds))
    with _importable(loaded.directory):
        return _launch(job, listener)


def _launch(job: _Job, listener: Listener | None) -> list[Any]:
    config, registry = job.config, default_registry()
    member = member_by_torchrun(config)
    if member is None and config.members == "auto":
        member_of(config, None)
    several = member is not None and member.world_size > 1
    blueprint = Blueprint(config, registry, torchrun=several)
    if blueprint.place != "processes":
        job = replace(job, target=_imported(job.target))
    elif isinstance(job.target, str):  # each member imports it for itself
        _check_findable(job.target)
    if inspect.iscoroutinefunction(job.target):
        raise _asynchronous(job.target)
    if member is not None or (len(config.names) == 1 and config.launcher is None):
        return [_run(build(config), job, listener)]
    transport = blueprint.component("transport")
    cls = registry.load(registry.find("transport", transport.backend))
    chosen = blueprint.component("launcher")
    if listener is not None and "hears" not in registry.find("launcher", chosen.backend).features:
        logger.warning("launcher %r does not pass on what happens in members", chosen.backend)
    launcher: Launcher = build(cast("Any", chosen))
    # The launcher first: it may connect to what the transport is to use too.
    with launcher, cast("type[Transport]", cls).meeting(transport, config.names) as meeting:
        job = replace(job, address=meeting.address)
        modules = () if blueprint.place == "threads" else _needed_by_each()
        return _start(launcher, job, meeting.keys, listener, modules)


def _start(
    launcher: Launcher,
    job: _Job,
    keys: Mapping[str, Mapping[str, SecretStr]],
    listener: Listener | None,
    modules: tuple[str, ...],
) -> list[Any]:
    ranks = [
        RankSpec(
            rank,
            run_member,
            (replace(job, keys=keys.get(member.name, {})),),
            member.env,
            member.resources,
            member.name,
            listener,
            modules,
        )
        for rank, member in enumerate(job.config.described())
    ]
    # A launcher of processes may say in its config how the members of jobs start.
    method: StartMethod = getattr(job.config.launcher, "start_method", "spawn")
    try:
        context = launcher.start(ranks, daemon=False, start_method=method)
    except SerializationError as error:
        inside = "[1][0]"  # of what a rank runs
        parts = {f"{inside}.{each}": each for each in ("args", "kwargs")}
        error.locate({**parts, f"{inside}.target": _name(job.target)})
        raise
    return context.results()


def _needed_by_each() -> tuple[str, ...]:
    """Return the modules that every member imports: its runtime, RPC, and the installed plugins."""
    registry = default_registry()
    installed = [each for each in registry.offers() if each.package and each.status == "available"]
    configs = {registry.find(each.interface, each.name).config for each in installed}
    modules = [each.partition(":")[0] for each in configs]
    return (
        __name__,
        "pparallel.runtime.rpc",
        *sorted({each.rpartition(".")[0] or each for each in modules}),
    )


def run_member(rank: int, job: _Job) -> Any:
    """Be member *rank* of *job*: what a launcher runs in each rank."""
    member = _member(rank, tuple(job.config.names), job)
    try:
        with _importable(job.config.directory):
            return _run(build(job.config, member=member), job, _upstream_listener())
    except BaseException as error:
        if not is_consequence(error):
            error.add_note(f"in member {member.name!r}")
        raise


def _run(rt: Runtime, job: _Job, listener: Listener | None) -> Any:
    """Return what the target returns inside *rt*.

    Raises:
        ConfigError: that is a coroutine, which nothing would run.
    """
    if listener is not None:
        rt.events.subscribe(listener, *job.kinds)
    with rt:
        function = _imported(job.target)
        try:
            result = function(rt, *job.args, **job.kwargs)
        except TypeError as error:
            if not _takes(function, rt, *job.args, **job.kwargs):
                error.add_note("a target takes the runtime first, as def main(rt), and then args")
            raise
        if inspect.iscoroutine(result):
            result.close()
            raise _asynchronous(job.target)
        return result


def _takes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # it says nothing of what it takes
        return True
    return True


def _name(target: Target) -> str:
    return target if isinstance(target, str) else name_of(target)


def _asynchronous(target: Target) -> ConfigError:
    name = _name(target)
    message = f"{name} returns a coroutine, which nothing runs: give a function that runs it, by"
    return ConfigError(f"{message} asyncio.run({name.rpartition(':')[2]}(rt))", path="target")


def _member(rank: int, names: tuple[str, ...], job: _Job) -> Member:
    """Return who this rank is; one that torchrun's agent has started knows more of that itself."""
    found = environment.torchrun()
    if found is None or found.world_size != len(names) or found.rank != rank:
        local = placed if (placed := local_rank()) is not None else rank
        return Member(names[rank], rank, local, len(names), names, job.address, job.keys)
    # On several machines nobody has handed anything from one to the others.
    address, keys = (found.address, {}) if found.machines > 1 else (job.address, job.keys)
    return Member(names[rank], rank, found.local_rank, len(names), names, address, keys)


def _upstream_listener() -> Listener | None:
    """Return what hands events on, None if nobody listens where this rank was launched."""
    tell = stopping.upstream()
    if tell is None:
        return None

    def hand_on(event: Event) -> None:
        try:
            tell(event)
        except SerializationError:  # it holds an exception, or a value, that cannot be sent
            tell(_in_words(event))

    return hand_on


def _in_words(event: Event) -> Event:
    """Return a copy of *event* with text in the place of all that is not plain."""
    values = {each.name: _plain(getattr(event, each.name), event.member) for each in fields(event)}
    return type(event)(**values)


def _plain(value: Any, member: str) -> Any:
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return value
    if isinstance(value, Mapping):
        return {_plain(key, member): _plain(each, member) for key, each in value.items()}
    if isinstance(value, BaseException):
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        text = "".join(traceback.format_exception(value))
        return RemoteError(member, name, _text(value, str), text)
    return _text(value, repr)


def _text(value: object, words: Callable[[object], str]) -> str:
    try:
        return words(value)
    except Exception as error:  # noqa: BLE001 - the user's __str__ and __repr__ may raise anything
        return f"<{type(value).__qualname__}: {type(error).__name__}>"


@contextmanager
def _importable(directory: Path | None) -> Iterator[None]:
    """Let modules in *directory* be imported inside."""
    if directory is None or str(directory) in sys.path:
        yield
        return
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        if str(directory) in sys.path:
            sys.path.remove(str(directory))


def _check_call(first: Any, keys: Mapping[str, Any]) -> None:
    """Refuse what people give to :func:`launch` by mistake.

    Raises:
        ConfigError: with what to write.
    """
    if module := _importing.get():
        message = f"module {module!r} calls launch() while it is imported for its target: guard"
        raise ConfigError(f'{message} that call with `if __name__ == "__main__":`', path="target")
    if callable(first):
        number = next((each for each in keys.values() if isinstance(each, int)), 2)
        name = name_of(first).rpartition(".")[2]
        raise ConfigError(f"give the members first: launch({number}, {name})")
    if isinstance(first, str) and first.isdecimal():
        raise ConfigError(f"the number of members is no text: launch({first}, ...)")
    for key, value in keys.items():
        if key not in RuntimeConfig.model_fields and not RuntimeConfig._hint(key, value):
            message = f"unknown key {key!r}; an argument of the target goes into kwargs:"
            raise ConfigError(f"{message} launch(..., kwargs={{{key!r}: ...}})")


def _check_findable(target: str) -> None:
    """Refuse a name whose module does not exist, without importing it.

    Raises:
        ConfigError: there is none.
    """
    module_name, _ = _parts(target)
    try:
        found = importlib.util.find_spec(module_name)
    except (ImportError, ValueError) as error:
        raise _unimportable(module_name, target, error) from error
    if found is None:
        raise _unimportable(module_name, target, f"No module named {module_name!r}")


def _parts(target: str) -> tuple[str, str]:
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigError(f"write 'module:function', not {target!r}", path="target")
    if module_name.endswith(".py"):
        right = f"{module_name.removesuffix('.py').replace('/', '.')}:{name}"
        raise ConfigError(f"a module has no suffix: write {right!r}", path="target")
    return module_name, name


def _unimportable(module_name: str, target: str, why: object) -> ConfigError:
    message = f"module {module_name!r} of {target!r} cannot be imported: {why}"
    return ConfigError(message, path="target")


def _imported(target: object) -> Callable[..., Any]:
    """Return the function that *target* names.

    Raises:
        ConfigError: it cannot be imported, or is no function.
    """
    if callable(target):
        return target
    if not isinstance(target, str):
        message = f"{target!r} is no function: give one, or 'module:function'"
        raise ConfigError(message, path="target")
    module_name, name = _parts(target)
    token = _importing.set(module_name)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise _unimportable(module_name, target, error) from error
    finally:
        _importing.reset(token)
    function = getattr(module, name, None)
    if not callable(function):
        hint = did_you_mean(name, [each for each in vars(module) if not each.startswith("_")])
        message = f"{module.__file__} has no function {name!r}.{hint}"
        raise ConfigError(message, path="target")
    return cast("Callable[..., Any]", function)
