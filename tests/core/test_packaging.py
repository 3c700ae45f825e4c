"""What a distribution needs: types, documented options and hooks."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pparallel
from pparallel.cli.schema.attributes import descriptions
from pparallel.config import BackendConfig, Config

ROOT = Path(__file__).resolve().parents[2]
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
    assert set(cls.model_fields) <= set(descriptions(cls))
    assert all(each.endswith(".") for each in descriptions(cls).values())
    assert cls is BackendConfig or cls.__doc__


@pytest.mark.parametrize("name", [name for name in pparallel.__all__ if name[0].isupper()])
def test_every_public_class_is_documented(name: str) -> None:
    assert getattr(pparallel, name).__doc__
