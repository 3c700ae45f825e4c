"""What ``pyproject.toml`` tells the backends under test."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from pparallel.errors import ConfigError, did_you_mean

FILE = "pyproject.toml"
_PATH = ("tool", "pparallel", "backends")

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables ``[tool.pparallel.backends.INTERFACE.NAME]`` of one file.

    Attributes:
        by_interface: the options, by interface and name of the backend.
    """

    by_interface: Mapping[str, Mapping[str, Table]] = field(default_factory=dict)

    @classmethod
    def of(cls, config: pytest.Config) -> Self:
        """Read the file that pytest has its settings from, or that in the root folder.

        Raises:
            ConfigError: it is no valid TOML, or has something else where tables belong.
        """
        chosen = config.inipath
        file = chosen if chosen is not None and chosen.name == FILE else config.rootpath / FILE
        if not file.is_file():
            return cls()
        found: Table = _parsed(file)
        for depth, key in enumerate(_PATH, start=1):
            found = _table(found.get(key, {}), _PATH[:depth])
        for interface, backends in found.items():
            for name, options in _table(backends, (*_PATH, interface)).items():
                _table(options, (*_PATH, interface, name))
        return cls(found)

    def options(self, interface: str, name: str) -> Table:
        """Return what a backend is told."""
        return self.by_interface.get(interface, {}).get(name, {})

    def strangers(self, known: Mapping[str, Iterable[str]]) -> list[str]:
        """Say which tables are for backends that are not among the *known*.

        Raises:
            ConfigError: a table is for an interface that there is not.
        """
        found = []
        for interface, backends in self.by_interface.items():
            if interface not in known:
                hint = did_you_mean(interface, known)
                message = f"no interface {interface!r}; there are {', '.join(known)}.{hint}"
                raise ConfigError(message, source=FILE, path=f"[{'.'.join(_PATH)}]")
            for name in sorted(set(backends) - set(known[interface])):
                hint = did_you_mean(name, known[interface])
                installed = ", ".join(sorted(known[interface]))
                found.append(
                    f"{FILE}: {heading(interface, name)} is for a backend that is not installed;"
                    f" {interface} backends are {installed}.{hint}"
                )
        return found


def heading(interface: str, name: str) -> str:
    """Return the first line of a backend's table."""
    return f"[{'.'.join((*_PATH, interface, name))}]"


def _parsed(file: Path) -> Table:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"it is no valid TOML: {error}", source=str(file)) from error


def _table(value: object, path: tuple[str, ...]) -> Table:
    if not isinstance(value, dict):
        message = f"it is a table, not {value!r}: [{'.'.join(_PATH)}.INTERFACE.BACKEND] has options"
        raise ConfigError(message, source=FILE, path=".".join(path))
    return value
