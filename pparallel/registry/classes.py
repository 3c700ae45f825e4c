"""The classes behind backends: imported when first built, and checked."""

from __future__ import annotations

import importlib
from typing import Any

from pparallel.config import BackendConfig
from pparallel.errors import ConfigError, MissingDependencyError, did_you_mean
from pparallel.plugin import Backend


def load_class(backend: Backend, base: type[BackendConfig[Any]]) -> type[Any]:
    """Import the class of *backend*.

    Args:
        backend: whose class.
        base: the base config of its interface.

    Raises:
        MissingDependencyError: a library that it needs is not installed.
        ConfigError: its plugin is broken: there is no such class, or it fills no interface.
    """
    what = f"{backend.interface} backend {backend.name!r} ({backend.target})"
    module_name, _, class_name = backend.target.partition(":")
    module = _imported(module_name, what, backend.install)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        hint = did_you_mean(class_name, vars(module))
        raise ConfigError(f"{what}: {module_name} has no class {class_name!r}.{hint}")
    if problem := _misfit(found, interface_class(base)):
        raise ConfigError(f"{what}: {class_name} {problem}")
    return found


def interface_class(base: type[BackendConfig[Any]]) -> type[Any]:
    """Return the class that backends of an interface derive from; *base* is its base config."""
    for each in base.__mro__:
        parameters = getattr(each, "__pydantic_generic_metadata__", {}).get("args", ())
        if parameters and isinstance(parameters[0], type):
            return parameters[0]
    message = f"{base.__qualname__} does not say what is built of it: derive it from BackendConfig"
    raise ConfigError(f"{message}[...]")


def how_to_build(cls: type[Any]) -> str:
    """Say how an object of an interface is built, where its class was given; empty: it is none."""
    from pparallel.registry.lookup import INTERFACES  # which imports this module

    for base in INTERFACES.values():
        if issubclass(cls, interface_class(base)):
            return base.how_to_build(interface_class(base).__name__)
    return ""


def _imported(module: str, what: str, install: str) -> Any:
    own = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ImportError) else None
        if missing and missing.partition(".")[0] != own:
            raise MissingDependencyError(what, str(error), install) from error
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{what} cannot be imported: {reason}") from error


def _misfit(found: type[Any], interface: type[Any]) -> str:
    """Say why a class cannot fill an interface; an empty string if it can."""
    if not issubclass(found, interface):
        return f"must derive from {interface.__module__}.{interface.__qualname__}"
    left_out = sorted(getattr(found, "__abstractmethods__", ()))
    if left_out:
        return f"leaves out what {interface.__qualname__} asks for: {', '.join(left_out)}"
    return ""
