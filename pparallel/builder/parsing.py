"""Parses config files and the values of overrides; no message shows what may be a secret."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from pparallel.builder.sources import FILES
from pparallel.errors import ConfigError


def read_file(path: Path) -> object:
    """Return what the config file at *path* holds.

    Raises:
        ConfigError: it cannot be read or parsed.
    """
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


def parse_yaml(text: str, source: str) -> Any:
    """Return what *text* says as YAML; *source* is how to call it in errors.

    Raises:
        ConfigError: it is no valid YAML.
    """
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
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
    ".toml": _parse_toml,
    ".json": _parse_json,
}


def _located(reason: str, line: int, column: int) -> str:
    return f"line {line}, column {column}: {reason}"
