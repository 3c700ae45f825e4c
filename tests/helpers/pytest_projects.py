"""Projects whose tests pytester runs, and a distribution of backends that some of them have."""

from __future__ import annotations

import pytest

# A run in this process drops what it was first to import, and others would find it twice.
from pparallel.testing.pytest_plugin import jobs, sections  # noqa: F401

STRICT = """
[tool.pytest.ini_options]
addopts = "--strict-markers --strict-config -p no:hypothesispytest -ra"
filterwarnings = ["error"]
"""

#: a distribution with a backend whose library is missing, and one that must be told something
SHELF = """
from pathlib import Path
from typing import Literal

from pparallel.interfaces.pool import PoolConfig
from pparallel.plugin import Backend, hookimpl


class AbsentConfig(PoolConfig, frozen=True):
    backend: Literal["absent"] = "absent"


class HollowConfig(PoolConfig, frozen=True):
    backend: Literal["hollow"] = "hollow"


class KeptConfig(PoolConfig, frozen=True):
    backend: Literal["kept"] = "kept"
    folder: Path
    weight: int
    label: str = ""


@hookimpl
def pparallel_backends():
    shelf = {"features": frozenset({"shelf"}), "install": "pip install shelf"}
    return [
        Backend("pool", "absent", config=f"{__name__}:AbsentConfig", target="shelf:Absent",
                requires=("no_such_library",), **shelf),
        Backend("pool", "hollow", config=f"{__name__}:HollowConfig",
                target="shelf_hollow:Hollow", **shelf),
        Backend("pool", "kept", config=f"{__name__}:KeptConfig",
                target="pparallel_local.thread_pool:ThreadPool", **shelf),
    ]
"""


def install(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, code: str = SHELF) -> None:
    """Have a distribution ``shelf`` with this plugin in the processes that *pytester* starts."""
    site = pytester.mkdir("site")
    (site / "shelf.py").write_text(code)
    (site / "shelf_hollow.py").write_text("import no_such_library\n\nclass Hollow: ...\n")
    metadata = site / "shelf-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pparallel]\nshelf = shelf\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
