"""Every shipped suite rejects every backend that is broken in one way.

The broken backends of a module run in a pytest of their own, a fork of one that has imported torch.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from warm_interpreter import WarmInterpreter

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
MODULES = sorted(
    each.stem
    for each in (HELPERS / "broken").glob("*.py")
    if each.stem not in ("__init__", "harness")
)
LIMIT = 100  #: seconds for one test
FEWEST = 3  #: broken backends of each interface

ENTRY_POINTS = "[pparallel]\nbroken = broken.{module}\n"
METADATA = "Metadata-Version: 2.1\nName: pparallel-broken\nVersion: 1.0\n"
RUN = """
import os, sys
sys.path[:0] = {path!r}
os.environ.update({environment!r})
import pytest
pytest.main({options!r})
"""


def classes(module: str) -> set[str]:
    source = (HELPERS / "broken" / f"{module}.py").read_text()
    return set(re.findall(r"^class (Test\w+)", source, re.M))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> None:
    """Replace the check of all other tests: broken backends leave things, on purpose.

    The modules' own tests look for them.
    """


def outcomes(module: str, folder: Path, warm: WarmInterpreter) -> dict[str, dict[str, str]]:
    """Run the broken backends of a module; return what came of the tests of each class."""
    installed = folder / "site" / "pparallel_broken-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(METADATA)
    (installed / "entry_points.txt").write_text(ENTRY_POINTS.format(module=module))
    path = [str(installed.parent), str(HELPERS)]
    found = folder / "outcomes.json"
    environment = {
        "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        "PPARALLEL_BROKEN_OUTCOMES": str(found),
        "CI": "true",  # where pytest lists all that differs: a verdict comes soon all the same
    }
    options = ["-q", "--import-mode=prepend", f"--timeout={LIMIT}", "--timeout-method=signal"]
    # Python's own tracebacks: pytest's parse whole files, which CPython 3.11 refuses while
    # another thread does so too.
    options += ["-p", "broken.harness", "-p", "no:cacheprovider", "--tb=native", "-rs"]
    options += ["--assert=plain"]  # what is imported already cannot be rewritten
    options += [f"{HELPERS}/broken/{module}.py"]
    script = folder / "run.py"
    script.write_text(RUN.format(path=path, environment=environment, options=options))
    done = warm.run(script, folder)
    print(done.stdout)  # noqa: T201 - shown by pytest when the test fails
    assert found.exists(), done.stdout[-5000:] + done.stderr[-5000:]
    read: dict[str, dict[str, str]] = json.loads(found.read_text())
    return read


@pytest.mark.parametrize("module", MODULES)
def test_a_broken_backend_is_rejected(
    module: str, tmp_path: Path, warm_torch: WarmInterpreter
) -> None:
    found = outcomes(module, tmp_path, warm_torch)
    assert found.keys() == classes(module), "not one of the tests of a class was run"
    wrong = {name: each for name, each in found.items() if set(each.values()) != {"rejected"}}
    assert not wrong


@pytest.mark.parametrize("module", MODULES)
def test_there_are_enough(module: str) -> None:
    assert len(classes(module)) >= FEWEST
