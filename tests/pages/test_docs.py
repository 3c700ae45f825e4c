"""The code in README and docs works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pluggy
import pytest
import typer
import yaml
from warm_interpreter import WarmInterpreter

import pparallel
from pparallel import plugin
from pparallel.cli import app
from pparallel.registry import INTERFACES, default_registry

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(language: str) -> Iterator[object]:
    for page in PAGES:
        found = re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)
        for number, match in enumerate(found, start=1):
            yield pytest.param(match[1], id=f"{page.relative_to(ROOT)}-{number}")


#: of a suite, which other tests run whole, the first laws are enough
PYTEST = """
import sys
import pytest
class Few:
    def pytest_collection_modifyitems(self, items):
        del items[4:]
sys.exit(pytest.main(["--assert=plain", "-k", "not sequence", *sys.argv[1:]], [Few()]))
"""


@pytest.mark.parametrize("code", [*blocks("python")])
def test_python_runs(code: str, tmp_path: Path, warm_torch: WarmInterpreter) -> None:
    script = tmp_path / "test_block.py"
    script.write_text(code)
    if "import pytest" in code:
        done = warm_torch.execute(PYTEST, tmp_path, str(script))
    else:
        done = warm_torch.run(script, tmp_path)
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
    for line in (ROOT / "docs" / "backends.md").read_text().splitlines():
        if match := re.match(r"\| ([a-z ]+) \| `(\w+)`[^|]*\|([^|]*)\|", line):
            table[match[1].replace(" ", "_"), match[2]] = set(re.findall(r"`(\w+)`", match[3]))
    builtin = [each for each in default_registry().offers() if each.package == "pparallel"]
    assert table == {(each.interface, each.name): set(each.features) for each in builtin}


def test_the_reference_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run python docs/generate.py"


def test_every_hook_is_explained() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    manager = pluggy.PluginManager(plugin.GROUP)
    manager.add_hookspecs(plugin)
    hooks = [name for name in vars(manager.hook) if name.startswith("pparallel_")]
    assert sorted(hooks) == ["pparallel_backends", "pparallel_listeners"]
    assert all(f"`{name}(" in page and name in str(plugin.__doc__) for name in hooks)


def test_every_variable_is_explained() -> None:
    source = (ROOT / "pparallel" / "runtime" / "environment.py").read_text()
    variables = set(re.findall(r'"(PPARALLEL_\w+)"', source))
    text = "".join(page.read_text() for page in PAGES)
    assert {each for each in variables if each not in text} == set()
    assert "PPARALLEL_STRICT_PLUGINS" in variables


def test_every_command_and_option_is_explained() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert f"pparallel {name}" in page, name
        for parameter in command.params:
            for option in parameter.opts:
                assert not option.startswith("-") or f"`{option}" in page, f"{name} {option}"


def test_every_interface_has_a_page() -> None:
    pages = {each.stem for each in (ROOT / "docs" / "interfaces").glob("*.md")}
    assert pages == set(INTERFACES)


@pytest.mark.parametrize("interface", sorted(INTERFACES))
def test_the_page_of_an_interface_names_its_backends_and_features(interface: str) -> None:
    page = (ROOT / "docs" / "interfaces" / f"{interface}.md").read_text()
    for each in default_registry().offers():
        if each.package == "pparallel" and each.interface == interface:
            assert f"`{each.name}`" in page
            assert all(f"`{feature}`" in page for feature in each.features), each
