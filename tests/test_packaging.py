"""What a distribution needs: types, documented options and hooks."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pparallel
from pparallel import plugin
from pparallel.config import BackendConfig, Config

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["pparallel", *sorted(path.name for path in (ROOT / "backends").glob("pparallel_*"))]


def modules() -> Iterator[str]:
    for name in PACKAGES:
        yield name
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not found.name.endswith("__main__"):
                yield found.name


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def config_classes() -> list[type[Config]]:
    for name in modules():
        importlib.import_module(name)
    ours = {cls for cls in subclasses(Config) if cls.__module__.partition(".")[0] in PACKAGES}
    named = {cls for cls in ours if "[" not in cls.__name__}  # leaves out BackendConfig[Pool]
    return sorted(named, key=lambda cls: (cls.__module__, cls.__qualname__))


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_are_typed(name: str) -> None:
    folder = ROOT / name if name == "pparallel" else ROOT / "backends" / name
    assert (folder / "py.typed").is_file()
    assert Path(str(importlib.import_module(name).__file__)).parent == folder


def test_configs_are_found() -> None:
    names = {cls.__name__ for cls in config_classes()}
    assert {"RuntimeConfig", "MemberConfig", "ThreadPoolConfig", "PoolConfig"} <= names


@pytest.mark.parametrize("cls", config_classes(), ids=lambda cls: cls.__qualname__)
def test_every_option_is_documented(cls: type[Config]) -> None:
    documented: set[str] = set()
    for each in cls.__mro__:
        if issubclass(each, Config) and each.__module__.partition(".")[0] in PACKAGES:
            documented |= attributes_in(inspect.cleandoc(each.__doc__ or ""))
    assert set(cls.model_fields) <= documented
    assert cls is BackendConfig or cls.__doc__


def attributes_in(docstring: str) -> set[str]:
    """Return the names in the ``Attributes:`` section of a docstring in Google's form."""
    section = docstring.partition("Attributes:\n")[2]
    section = re.split(r"^\S", section, maxsplit=1, flags=re.M)[0]
    return set(re.findall(r"^ {4}(\w+):", section, re.M))


def test_every_hook_is_documented() -> None:
    hooks = [each for each in vars(plugin).values() if hasattr(each, "pparallel_spec")]
    assert [each.__name__ for each in hooks] == ["pparallel_backends"]
    for each in hooks:
        assert each.__doc__
        assert each.__name__ in str(plugin.__doc__)


@pytest.mark.parametrize("name", [name for name in pparallel.__all__ if name[0].isupper()])
def test_every_public_class_is_documented(name: str) -> None:
    assert getattr(pparallel, name).__doc__
