"""Every shipped suite rejects every backend that is broken in one way."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
MODULES = sorted(
    each.stem
    for each in (TESTS / "broken").glob("*.py")
    if each.stem not in ("__init__", "harness")
)
LIMIT = 60  #: seconds for one test
FEWEST = 10  #: broken backends of each interface

ENTRY_POINTS = "[pparallel]\nbroken = broken.{module}\n"
METADATA = "Metadata-Version: 2.1\nName: pparallel-broken\nVersion: 1.0\n"


def classes(module: str) -> list[str]:
    source = (TESTS / "broken" / f"{module}.py").read_text()
    return re.findall(r"^class (Test\w+)", source, re.M)


@functools.cache
def outcomes(module: str, directory: Path) -> dict[str, dict[str, str]]:
    """Run a module in a pytest of its own; return what came of each class's tests."""
    installed = directory / module / "pparallel_broken-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(METADATA)
    (installed / "entry_points.txt").write_text(ENTRY_POINTS.format(module=module))
    found = directory / module / "outcomes.json"
    path = os.pathsep.join([str(installed.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PPARALLEL_BROKEN_OUTCOMES": str(found)}
    options = ["-q", "--import-mode=prepend", f"--timeout={LIMIT}", "--timeout-method=signal"]
    options += ["-p", "broken.harness", "-p", "no:cacheprovider", "--tb=short", "-rs"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(TESTS / "broken" / f"{module}.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.exists(), done.stdout[-5000:] + done.stderr[-5000:]
    print(done.stdout)  # noqa: T201 - shown by pytest when the test that asked first fails
    result: dict[str, dict[str, str]] = json.loads(found.read_text())
    return result


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broken")


CASES = [
    pytest.param(module, name, id=f"{module}-{name}")
    for module in MODULES
    for name in classes(module)
]


@pytest.mark.timeout(600)  # the first of a module runs the others too
@pytest.mark.parametrize(("module", "name"), CASES)
def test_a_broken_backend_is_rejected(module: str, name: str, directory: Path) -> None:
    found = outcomes(module, directory).get(name, {})
    assert found, f"none of the tests of {name} were run"
    assert set(found.values()) == {"rejected"}, found


@pytest.mark.parametrize("module", MODULES)
def test_there_are_enough(module: str) -> None:
    assert len(classes(module)) >= FEWEST
