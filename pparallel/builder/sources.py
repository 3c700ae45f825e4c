"""Reads configs from files and mappings, and lays overrides over them."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from pparallel.errors import ConfigError
from pparallel.registry import INTERFACES
from pparallel.runtime import environment

Overrides = Iterable[str] | Mapping[str, Any]


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
    label = str(source) if isinstance(source, str | Path) else ""
    content = _read_file(Path(source)) if isinstance(source, str | Path) else source or {}
    raw = _plain(content, label)
    if isinstance(source, str | Path) and isinstance(raw.get("directory"), str):
        raw["directory"] = str(Path(source).resolve().parent / raw["directory"])
    raw.pop("$schema", None)  # for editors: how a JSON file names its schema
    for path, text in environment.overrides():
        variable = "PPARALLEL__" + "__".join(path).upper()
        _put(raw, path, _parse_yaml(text, variable), variable)
    for each in overrides.items() if isinstance(overrides, Mapping) else overrides:
        key, equals, text = each.partition("=") if isinstance(each, str) else (each[0], "=", "")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise ConfigError("write an override as 'section.key=value'", source=repr(key))
        value = _parse_yaml(text, repr(key)) if isinstance(each, str) else each[1]
        _put(raw, path, value, repr(key))  # the value may be a secret
    return {**raw, **_plain(keys or {}, "")}, label


def _read_file(path: Path) -> object:
    parse = _PARSERS.get(path.suffix.lower())
    if os.path.isdir(path):  # unlike path.is_dir() it does not raise
        raise ConfigError("it is a directory; give a config file", source=str(path))
    if parse is None:
        known = ", ".join(FILES)
        message = f"unknown kind of file {path.suffix!r}; a config ends in one of: {known}"
        raise ConfigError(message, source=str(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError("there is no such file", source=str(path)) from None
    except UnicodeDecodeError as error:
        message = f"it is not UTF-8 text: byte {error.start} cannot be decoded"
        raise ConfigError(message, source=str(path)) from error
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}", source=str(path)) from error
    content = parse(text, str(path))
    if content is None or not text.strip():
        raise ConfigError("it is empty; write at least 'members: 1'", source=str(path))
    return content


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


_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
#: how YAML's parser calls its tokens: no part of the content
_TOKENS = {getattr(each, "id", "") for each in yaml.tokens.Token.__subclasses__()}


def _masked(reason: str) -> str:
    """Return the words of a parser without what they quote of the content, but for marks."""

    def mask(found: re.Match[str]) -> str:
        text = found[1] or found[2] or ""
        return found[0] if len(text) < 2 or text in _TOKENS else "'...'"

    return _QUOTED.sub(mask, reason)


class _RepeatedYamlKeyError(yaml.composer.ComposerError):
    """Raised inside yaml's parser; its message shows no value."""


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: 1e-3 is a number, and a key given twice is a mistake."""

    @override
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Not where mappings are constructed: by then merge keys have added what may be repeated.
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in lines and key.tag != "tag:yaml.org,2002:merge":
                message = f"key {key.value!r} is given twice, first in line {lines[name]}"
                raise _RepeatedYamlKeyError(problem=message, problem_mark=key.start_mark)
            lines[name] = key.start_mark.line + 1
        return node


# YAML 1.1, which PyYAML follows, asks for a dot in numbers with an exponent.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _parse_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context or "it is no YAML"
        if opened := _unclosed(error):
            raise ConfigError(opened, source=source) from None
        if not isinstance(error, _RepeatedYamlKeyError):
            reason = _masked(reason)
        message = _located(reason, mark.line + 1, mark.column + 1) if mark else reason
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = _masked(" ".join(str(error).split()))
        message = f"it is no valid YAML: {reason}"
    # Not "from" the parser's error: it shows a line of the content, which may hold a secret.
    raise ConfigError(message, source=source)


def _unclosed(error: yaml.MarkedYAMLError) -> str:
    """Say which bracket the text leaves open; an empty string if that is not what is wrong."""
    opened = {"while parsing a flow mapping": "{", "while parsing a flow sequence": "["}
    bracket, began, ended = opened.get(error.context or ""), error.context_mark, error.problem_mark
    if bracket is None or began is None or ended is None or ended.line == began.line:
        return ""
    return f"line {began.line + 1}: {bracket!r} is not closed"


def _parse_toml(text: str, source: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"it is no valid TOML: {error}", source=source) from error


def _parse_json(text: str, source: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        message = _located(f"it is no valid JSON: {error.msg}", error.lineno, error.colno)
        raise ConfigError(message, source=source) from error
    except _RepeatedKeyError as error:
        raise ConfigError(f"key {error.args[0]!r} is given twice", source=source) from None


class _RepeatedKeyError(Exception):
    """Raised inside json's parser, which does not know where it is."""


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKeyError(key)
        found[key] = value
    return found


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".toml": _parse_toml,
    ".json": _parse_json,
}


FILES = tuple(_PARSERS)  #: how the names of config files end


def _located(reason: str, line: int, column: int) -> str:
    return f"line {line}, column {column}: {reason}"


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
