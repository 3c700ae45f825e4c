"""The code in README and docs works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import pparallel
from pparallel.registry import default_registry

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(language: str) -> Iterator[object]:
    for page in PAGES:
        found = re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)
        for number, match in enumerate(found, start=1):
            yield pytest.param(match[1], id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("code", [*blocks("python")])
def test_python_runs(code: str, tmp_path: Path) -> None:
    script = tmp_path / "test_block.py"
    script.write_text(code)
    runner = ["-m", "pytest"] if "import pytest" in code else []
    command = [sys.executable, "-W", "error", *runner, str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.parametrize("text", [*blocks("yaml")])
def test_yaml_is_a_config(text: str) -> None:
    config = pparallel.load(yaml.safe_load(text))
    assert config.names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    missing = [each for each in targets if not (page.parent / each).exists()]
    assert not missing


def test_the_table_of_backends_is_whole() -> None:
    table = {}
    for line in (ROOT / "README.md").read_text().splitlines():
        if match := re.match(r"\| ([a-z ]+) \| `(\w+)`[^|]*\|([^|]*)\|", line):
            table[match[1].replace(" ", "_"), match[2]] = set(re.findall(r"`(\w+)`", match[3]))
    builtin = [each for each in default_registry().offers() if each.package == "pparallel"]
    assert table == {(each.interface, each.name): set(each.features) for each in builtin}
