"""The configs of the backends that one test is run with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pparallel.builder import load
from pparallel.config import BackendConfig
from pparallel.errors import ConfigError
from pparallel.registry import INTERFACES, default_registry
from pparallel.runtime import environment
from pparallel.testing.pytest_plugin.selection import selection
from pparallel.testing.pytest_plugin.tables import FILE, heading
from pparallel.testing.pytest_plugin.wishes import MARKER, wish

#: The name of a fixture in braces; a brace that is meant is doubled.
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")


def section(request: pytest.FixtureRequest, interface: str, name: str) -> BackendConfig[Any]:
    """Return the config of a backend under test; skip the test where it cannot be used."""
    chosen = selection(request.config)
    what = f"{interface} backend {name!r}"
    offer = chosen.offer(interface, name)
    if offer.status == "missing dependency":
        refuse_missing(f"{what}: {offer.detail}")
    if offer.status == "broken":
        refuse_missing(f"{what} is broken: {offer.detail.splitlines()[-1]}")
    wished = wish(request.node)
    table = chosen.tables.options(interface, name)
    marked = wished.options.get(interface, {})
    is_asked_for = chosen.is_asked_for(interface, name, wished)
    if lacking := _lacking(interface, name, {**table, **marked}):
        _refuse_unusable(f"{what} {_advice(interface, name, lacking)}", is_asked_for)
    filled = {key: _filled(request, each) for key, each in table.items()}
    try:
        return load(INTERFACES[interface], {**filled, **marked, "backend": name})
    except ConfigError as error:
        problem = error
    # Not within the handler, for pytest would show the error twice.
    if problem.path == "backend" or not (table or marked):
        _refuse_unusable(f"{what} cannot be used here: {problem}", is_asked_for)
    is_of_marker = not table or problem.path.partition(".")[0] in marked
    where = MARKER if is_of_marker else f"{FILE}: {heading(interface, name)}"
    pytest.fail(f"{where}: {what}: {problem}", pytrace=False)


def refuse_missing(reason: str) -> NoReturn:
    """Skip a test whose backend's library is missing; in CI, fail it."""
    if environment.continuous_integration():
        message = (
            f"{reason} (in CI a missing backend fails: install it, or name the backends to test as"
            " pparallel_backends in the ini file)"
        )
        pytest.fail(message, pytrace=False)
    pytest.skip(reason)


def _refuse_unusable(reason: str, is_asked_for: bool) -> NoReturn:
    """Skip a test whose backend cannot be used as things are; in CI, fail it if it was named."""
    if is_asked_for and environment.continuous_integration():
        pytest.fail(f"{reason} (in CI a backend that is asked for by name fails)", pytrace=False)
    pytest.skip(reason)


def _lacking(interface: str, name: str, given: Mapping[str, Any]) -> list[str]:
    """Return the options without default that are not given, if those given are options."""
    fields = default_registry().config(interface, name).model_fields
    if not fields.keys() >= given.keys():
        return []  # the one that is missing may be misspelt: the load says which there are
    return [key for key, each in fields.items() if each.is_required() and key not in given]


def _advice(interface: str, name: str, lacking: list[str]) -> str:
    """Say what to write where required options are not given."""
    fields = default_registry().config(interface, name).model_fields
    written = ", ".join(f"{key} = {_example(fields[key].annotation, name)}" for key in lacking)
    return (
        f"needs {', '.join(lacking)}: in {FILE}, below {heading(interface, name)}, write {written}"
    )


def _example(annotation: object, name: str) -> str:
    if annotation is Path:
        return f'"{{tmp_path}}/{name}"'
    if isinstance(annotation, type) and issubclass(annotation, BackendConfig):
        return '{ backend = "..." }'
    return '"..."' if annotation is str else "..."


def _filled(request: pytest.FixtureRequest, value: Any) -> Any:
    """Put the values of fixtures in place of their names in braces; so ``{tmp_path}``."""
    if isinstance(value, Mapping):
        return {key: _filled(request, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(request, each) for each in value]
    if not isinstance(value, str):
        return value
    whole = _PLACEHOLDER.fullmatch(value)
    if whole and whole[1]:
        return request.getfixturevalue(whole[1])
    return _PLACEHOLDER.sub(
        lambda found: str(request.getfixturevalue(found[1])) if found[1] else found[0][0], value
    )
