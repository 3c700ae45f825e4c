"""What the markers of one test ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from pparallel.errors import ConfigError, did_you_mean
from pparallel.registry import INTERFACES

MARKER = "@pytest.mark.pparallel"
_KEYS = ("backends", "features", "options")


@dataclass(slots=True)
class Wish:
    """What the markers of one test ask for, of all interfaces together.

    Attributes:
        backends: names of backends, or interface and name with a colon between; of several markers
            each narrows what the others leave.
        features: names of features, or interface and feature with a colon between.
        options: options by interface; those of the marker next to the test count.
    """

    backends: list[list[str]] = field(default_factory=list)
    features: set[str] = field(default_factory=set)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


def wish(item: pytest.Item) -> Wish:
    """Return what the markers of *item*, its class and its module ask for.

    Raises:
        ConfigError: a marker has arguments that there are not.
    """
    found = Wish()
    for marker in item.iter_markers("pparallel"):
        _check_keys(marker)
        if "backends" in marker.kwargs:
            found.backends.append(_texts(marker, "backends"))
        if "features" in marker.kwargs:
            found.features.update(_texts(marker, "features"))
        for interface, options in _options(marker).items():
            found.options[interface] = {**options, **found.options.get(interface, {})}
    return found


def _check_keys(marker: pytest.Mark) -> None:
    if marker.args:
        message = f"give {', '.join(_KEYS)} by keyword, not {marker.args[0]!r}"
        raise ConfigError(message, source=MARKER)
    for key in marker.kwargs:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS)
            message = f"no argument {key!r}; there are {', '.join(_KEYS)}.{hint}"
            raise ConfigError(message, source=MARKER)


def _texts(marker: pytest.Mark, key: str) -> list[str]:
    value = marker.kwargs[key]
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"give names, not {value!r}", source=MARKER, path=key)
    return list(value)


def _options(marker: pytest.Mark) -> Mapping[str, Mapping[str, Any]]:
    options = marker.kwargs.get("options", {})
    example = "give options by interface, such as {'pool': {'size': 2}}"
    if not isinstance(options, Mapping):
        raise ConfigError(f"{example}, not {options!r}", source=MARKER, path="options")
    for interface, each in options.items():
        if interface not in INTERFACES:
            hint = did_you_mean(str(interface), INTERFACES)
            message = f"no interface {interface!r}; {example}.{hint}"
            raise ConfigError(message, source=MARKER, path="options")
        if not isinstance(each, Mapping):
            path = f"options.{interface}"
            raise ConfigError(f"{example}, not {each!r}", source=MARKER, path=path)
    return options
