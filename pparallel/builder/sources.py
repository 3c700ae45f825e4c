"""Reads configs from files and mappings, and lays overrides over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pparallel.errors import ConfigError
from pparallel.registry import INTERFACES
from pparallel.runtime import environment

Overrides = Iterable[str] | Mapping[str, Any]
FILES = (".yaml", ".yml", ".toml", ".json")  #: how the names of config files end


def read(
    source: str | Path | Mapping[str, Any] | None,
    overrides: Overrides = (),
    keys: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], str]:
    """Return what *source* holds with overrides applied, and how to call it in errors.

    The environment's overrides (``PPARALLEL__POOL__SIZE=8``) apply first, then *overrides*
    (``"pool.size=8"``), whose text is read as YAML, or a mapping (``{"pool.size": 8}``); last come
    *keys* of the whole. What *source* holds is not changed.

    Raises:
        ConfigError: the source cannot be read, is no mapping, or an override does not fit it.
    """
    label, content = "", cast("object", source or {})
    if isinstance(source, str | Path):
        from pparallel.builder.parsing import read_file  # its libraries take a while to import

        label, content = str(source), read_file(Path(source))
    raw = _plain(content, label)
    if label and isinstance(raw.get("directory"), str):
        raw["directory"] = str(Path(label).resolve().parent / raw["directory"])
    raw.pop("$schema", None)  # for editors: how a JSON file names its schema
    for path, text in environment.overrides():
        variable = "PPARALLEL__" + "__".join(path).upper()
        _put(raw, path, _parsed(text, variable), variable)
    for each in overrides.items() if isinstance(overrides, Mapping) else overrides:
        key, equals, text = each.partition("=") if isinstance(each, str) else (each[0], "=", "")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise ConfigError("write an override as 'section.key=value'", source=repr(key))
        value = _parsed(text, repr(key)) if isinstance(each, str) else each[1]
        _put(raw, path, value, repr(key))  # the value may be a secret
    return {**raw, **_plain(keys or {}, "")}, label


def _parsed(text: str, source: str) -> Any:
    from pparallel.builder.parsing import parse_yaml

    return parse_yaml(text, source)


def _plain(raw: object, label: str) -> dict[str, Any]:
    """Return a copy of a config, of which every mapping and list is its own."""
    if not isinstance(raw, Mapping):
        message = f"a config is a mapping of sections, not {_kind(raw)}"
        raise ConfigError(message, source=label)
    try:
        copied: dict[str, Any] = _copied(raw, "", label)
    except RecursionError as error:
        raise ConfigError("it contains itself, or is nested too deeply", source=label) from error
    return copied


def _copied(value: object, path: str, label: str) -> Any:
    prefix = f"{path}." if path else ""
    if isinstance(value, Mapping):
        return {
            _text_key(key, path, label): _copied(each, f"{prefix}{key}", label)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_copied(each, f"{prefix}{at}", label) for at, each in enumerate(value)]
    return value


def _text_key(key: object, path: str, label: str) -> str:
    if not isinstance(key, str):
        message = f"key {key!r} is {_kind(key)}; keys are text: put it in quotes"
        raise ConfigError(message, path=path, source=label)
    return key


def _put(raw: dict[str, Any], path: Sequence[str], value: Any, source: str) -> None:
    """Set the value at *path*, making the sections on the way that are not there."""
    here: Any = raw
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        dotted = ".".join(path[:depth])
        if isinstance(here, dict):
            if last:
                here[part] = value
            elif here.get(part) is None:
                here[part] = {}
            elif isinstance(here[part], str | int) and part in INTERFACES:
                here[part] = INTERFACES[part].expanded(here[part])
            here = here[part]
        elif isinstance(here, list):
            at = _index(here, part, dotted, source)
            if last:
                here[at] = value
            here = here[at]
        else:
            message = f"there is nothing in it to set: it is {_kind(here)}"
            raise ConfigError(message, path=dotted, source=source)


def _index(items: list[Any], part: str, dotted: str, source: str) -> int:
    if not part.isdecimal():
        message = f"it is a list; name one of its items by number, not {part!r}"
        raise ConfigError(message, path=dotted, source=source)
    if int(part) >= len(items):
        message = f"it has {len(items)} items, numbered from 0, and no item {part}"
        raise ConfigError(message, path=dotted, source=source)
    return int(part)


def _kind(value: object) -> str:
    """Say in words what *value* is."""
    names = {
        type(None): "nothing",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        tuple: "a list",
        dict: "a mapping",
    }
    other = "a function" if callable(value) else f"a {type(value).__name__}"
    return names.get(type(value), other)
