"""Every shipped suite rejects every backend that is broken in one way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
MODULES = sorted(
    each.stem
    for each in (HELPERS / "broken").glob("*.py")
    if each.stem not in ("__init__", "harness")
)
LIMIT = 60  #: seconds for one test
LONG = 240  #: for one that tries sequence after sequence until one fails
FEWEST = 10  #: broken backends of each interface

ENTRY_POINTS = "[pparallel]\nbroken = broken.{module}\n"
METADATA = "Metadata-Version: 2.1\nName: pparallel-broken\nVersion: 1.0\n"


def classes(module: str) -> list[str]:
    source = (HELPERS / "broken" / f"{module}.py").read_text()
    return re.findall(r"^class (Test\w+)", source, re.M)


class Run:
    """Some classes of a module, which run in a pytest of their own."""

    def __init__(self, module: str, names: list[str], directory: Path) -> None:
        installed = directory / module / "pparallel_broken-1.0.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(METADATA)
        (installed / "entry_points.txt").write_text(ENTRY_POINTS.format(module=module))
        self._found = directory / module / "outcomes.json"
        self._output = directory / module / "output.txt"
        path = [str(installed.parent), str(HELPERS), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PPARALLEL_BROKEN_OUTCOMES": str(self._found),
            "PPARALLEL_BROKEN_CLASSES": " ".join(names),
            "CI": "true",  # where pytest lists all that differs: a verdict comes soon all the same
        }
        limit = LONG if module.endswith("sequences") else LIMIT
        options = ["-q", "--import-mode=prepend", f"--timeout={limit}", "--timeout-method=signal"]
        # Python's own tracebacks: pytest's parse whole files, which CPython 3.11 refuses while
        # another thread does so too.
        options += ["-p", "broken.harness", "-p", "no:cacheprovider", "--tb=native", "-rs"]
        command = [sys.executable, "-m", "pytest", *options, f"{HELPERS}/broken/{module}.py"]
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def outcomes(self) -> dict[str, dict[str, str]]:
        """Return what came of each class's tests."""
        self._process.wait()
        output = self._output.read_text()
        assert self._found.exists(), output[-5000:]
        print(output)  # noqa: T201 - shown by pytest when the test that asked fails
        found: dict[str, dict[str, str]] = json.loads(self._found.read_text())
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Run]]:
    """The modules that are asked for, all at work: they wait more than they compute."""
    directory = tmp_path_factory.mktemp("broken")
    wanted: dict[str, list[str]] = {}
    for item in request.session.items:
        if getattr(item, "function", None) is test_a_broken_backend_is_rejected:
            params = item.callspec.params  # type: ignore[attr-defined]
            wanted.setdefault(params["module"], []).append(params["name"])
    started = {module: Run(module, names, directory) for module, names in wanted.items()}
    yield started
    for each in started.values():
        each.stop()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> None:
    """Replace the check of all other tests: what runs beside these leaves things, on purpose.

    The modules' own tests look for them.
    """


CASES = [
    pytest.param(module, name, id=f"{module}-{name}")
    for module in MODULES
    for name in classes(module)
]


@pytest.mark.costly
@pytest.mark.timeout(600)  # the first of a module waits for the others too
@pytest.mark.parametrize(("module", "name"), CASES)
def test_a_broken_backend_is_rejected(module: str, name: str, runs: dict[str, Run]) -> None:
    found = runs[module].outcomes().get(name, {})
    assert found, f"none of the tests of {name} were run"
    assert set(found.values()) == {"rejected"}, found


@pytest.mark.parametrize("module", MODULES)
def test_there_are_enough(module: str) -> None:
    assert len(classes(module)) >= FEWEST
