"""The example plugin as its users have it, and the page that explains it."""

from __future__ import annotations

import json
import pkgutil
import re
import shutil
import zipfile
from pathlib import Path

import pytest
from fresh_environment import FreshEnvironment, wheel

import pparallel.testing
from pparallel.plugin import INTERFACE_VERSIONS
from pparallel.registry import INTERFACES, interface_class

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "plugins" / "pparallel-example"
PAGE = ROOT / "docs" / "write_a_backend.md"
TEMPLATE = "pparallel/cli/new_plugin/template/"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of pparallel and of the example."""
    folder = tmp_path_factory.mktemp("wheels")
    return wheel(ROOT, folder / "pparallel"), wheel(EXAMPLE, folder / "example")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, wheels: tuple[Path, Path]) -> FreshEnvironment:
    """An environment with these two, and nothing of the source tree.

    In its folder lies a copy of the example, which its command has written.
    """
    environment = FreshEnvironment(tmp_path_factory.mktemp("fresh"))
    environment.install(*wheels)
    done = environment.run("pparallel", "new-plugin", "json-lines")
    assert done.returncode == 0, done.stderr
    return environment


def template_files() -> dict[str, str]:
    """What is copied, by its path."""
    parts = [".github", ".gitignore", "LICENSE", "README.md", "pyproject.toml"]
    found: dict[str, str] = {}
    for part in (*parts, "pparallel_example", "tests"):
        for path in [EXAMPLE / part, *(EXAMPLE / part).rglob("*")]:
            if path.is_file() and path.suffix != ".pyc":
                found[path.relative_to(EXAMPLE).as_posix()] = path.read_text()
    return found


# -- installed ------------------------------------------------------------------------------------


class TestInstalled:
    """From wheels, in an environment that sees nothing of the source tree."""

    def test_its_own_tests_pass(self, fresh: FreshEnvironment) -> None:
        """The example's tests by another name, but for those that try sequences and deaths.

        ``tests/soak/cli/test_example_plugin.py`` has those.
        """
        folder = fresh.folder / "pparallel-json-lines"
        fresh.install(wheel(folder, fresh.folder / "copy"))
        options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--import-mode=importlib"]
        chosen = "not any_sequence and not killed"
        shutil.copytree(folder / "tests", fresh.folder / "tests")
        done = fresh.run("python", "-m", "pytest", *options, "-k", chosen, "tests")
        assert done.returncode == 0, done.stdout + done.stderr
        assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 80

    def test_nothing_of_the_source_tree_is_seen(self, fresh: FreshEnvironment) -> None:
        code = "import pparallel, pparallel_example as own; print(pparallel.__file__, own.__file__)"
        done = fresh.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        assert all(Path(each).is_relative_to(fresh.folder) for each in done.stdout.split())

    def test_its_backends_are_listed(self, fresh: FreshEnvironment) -> None:
        offers = json.loads(fresh.run("pparallel", "backends", "--json").stdout)
        own = [each for each in offers if each["package"] == "pparallel-example"]
        assert [each["interface"] for each in own] == ["ordered_server", "pool"]
        for each in own:
            assert each["name"] == "example"
            assert each["version"] == "0.1.0"
            assert each["interface_version"] == INTERFACE_VERSIONS[each["interface"]]
            assert (each["status"], each["detail"]) == ("available", "")

    def test_the_installed_command_writes_what_the_source_tree_has(
        self, fresh: FreshEnvironment
    ) -> None:
        folder = fresh.folder / "pparallel-json-lines"
        written = {
            each.relative_to(folder).as_posix().replace("json_lines", "example")
            for each in folder.rglob("*")
            if each.is_file() and each.suffix != ".pyc"
        }
        assert written == template_files().keys()

    def test_the_wheel_holds_the_template_once(self, wheels: tuple[Path, Path]) -> None:
        names = zipfile.ZipFile(wheels[0]).namelist()
        held = sorted(each for each in names if each.startswith(TEMPLATE))
        assert held == sorted(TEMPLATE + each for each in template_files())
        assert not [each for each in names if each.startswith(("plugins/", "pparallel_example"))]

    def test_its_wheel_is_typed_and_has_no_tests(self, wheels: tuple[Path, Path]) -> None:
        names = zipfile.ZipFile(wheels[1]).namelist()
        assert "pparallel_example/py.typed" in names
        assert not [each for each in names if each.startswith("tests")]


# -- the page -------------------------------------------------------------------------------------


def test_the_backends_are_short() -> None:
    for name in ("pool", "ordered_server"):
        lines = (EXAMPLE / "pparallel_example" / f"{name}.py").read_text().splitlines()
        assert len(lines) < 100, name


def test_the_page_shows_the_files_as_they_are() -> None:
    blocks = re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    shown = dict(blocks)
    assert len(shown) == len(blocks)
    files = template_files()
    assert set(files) - set(shown) == {
        ".gitignore",
        "LICENSE",
        "README.md",
        "pparallel_example/py.typed",
    }
    for path, text in shown.items():
        assert text == files[path], path


def test_the_page_lists_the_interfaces() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)`, `(\w+)` \| (.*?) \| `(\w+)` \|$", PAGE.read_text(), re.M
    )
    assert {row[0] for row in rows} == set(INTERFACES)
    for interface, cls, config, methods, suite in rows:
        base = INTERFACES[interface]
        filled = interface_class(base)
        assert (filled.__name__, base.__name__) == (cls, config)
        assert re.findall(r"`(\w+)`", methods) == sorted(filled.__abstractmethods__)
        assert suite in pparallel.testing.__all__


def test_what_backends_share_exists() -> None:
    text = (ROOT / "docs" / "reference" / "shared.md").read_text()
    names = set(re.findall(r"`(pparallel(?:\.\w+){2,})`|^::: (\S+)", text, re.M))
    found = {each for pair in names for each in pair if each}
    assert len(found) > 30
    for name in sorted(found):
        assert pkgutil.resolve_name(name) is not None
