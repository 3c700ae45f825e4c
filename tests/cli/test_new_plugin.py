"""``pparallel new-plugin``: what it writes works at once, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from warm_interpreter import Done, WarmInterpreter

from pparallel.cli.new_plugin import template
from pparallel.cli.new_plugin.names import check_name, names_of
from pparallel.errors import ConfigError


@pytest.fixture
def new_plugin(tmp_path: Path, warm: WarmInterpreter) -> Callable[..., Done]:
    """What runs the command in ``tmp_path``."""
    return partial(warm.pparallel, tmp_path, "new-plugin")


def installed(folder: Path, site: Path) -> dict[str, str]:
    """Lay the package out as pip would; return the environment that sees it."""
    project = (folder / "pyproject.toml").read_text()
    (point,) = re.findall(r"^\[project\.entry-points\.pparallel\]\n(.*)\n", project, re.M)
    point = point.replace('"', "")
    (package,) = folder.glob("pparallel_*")
    info = site / f"{package.name}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[pparallel]\n{point}\n")
    (site / package.name).symlink_to(package)
    return {"PYTHONPATH": str(site)}


def paths(folder: Path) -> set[str]:
    return {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}


# -- what is written ------------------------------------------------------------------------------


class TestWritten:
    """What is done with a copy; ``test_example_plugin.py`` installs one and runs its tests."""

    def test_a_copy_is_listed_and_used_by_its_name(
        self, tmp_path: Path, new_plugin: Callable[..., Done], warm: WarmInterpreter
    ) -> None:
        new_plugin("json-lines")
        environment = installed(tmp_path / "pparallel-json-lines", tmp_path / "site")
        listed = warm.pparallel(tmp_path, "backends", **environment).stdout
        rows = [line.split()[:5] for line in listed.splitlines() if "json_lines" in line]
        package = ["json_lines", "pparallel-json-lines", "0.1.0", "1"]
        assert rows == [["ordered_server", *package], ["pool", *package]]
        code = (
            "import pparallel\n"
            "with pparallel.build({'pool': {'backend': 'json_lines', 'size': 2}}) as rt:\n"
            "    print(type(rt.pool).__name__, rt.pool.map(abs, [-1, 2]))\n"
        )
        done = warm.execute(code, tmp_path, **environment)
        assert done.stdout == "JsonLinesPool [1, 2]\n", done.stderr

    @pytest.mark.parametrize("interface", template.INTERFACES)
    def test_a_copy_of_one_interface_has_nothing_of_the_other(
        self,
        tmp_path: Path,
        interface: str,
        new_plugin: Callable[..., Done],
        warm: WarmInterpreter,
    ) -> None:
        done = new_plugin("shelf", "--interface", interface)
        assert done.returncode == 0, done.stderr
        folder = tmp_path / "pparallel-shelf"
        (other,) = set(template.INTERFACES) - {interface}
        assert not [each for each in paths(folder) if other in each]
        for each in ("pparallel_shelf/__init__.py", "README.md"):
            assert other not in (folder / each).read_text()
        environment = installed(folder, tmp_path / "site")
        code = "import pparallel_shelf as own; print(len(own.pparallel_backends()), own.__all__)"
        done = warm.execute(code, tmp_path, **environment)
        assert done.stdout.startswith("1 ['Shelf"), done.stderr

    def test_a_copy_is_clean(self, tmp_path: Path, new_plugin: Callable[..., Done]) -> None:
        new_plugin("a-name-of-26-letters-in-it")
        (folder,) = tmp_path.iterdir()
        command = [sys.executable, "-m", "ruff", "check", "--no-cache"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout

    def test_an_example_is_written_nowhere(
        self, tmp_path: Path, new_plugin: Callable[..., Done]
    ) -> None:
        new_plugin("shelf")
        folder = tmp_path / "pparallel-shelf"
        for each in paths(folder):
            text = each + (folder / each).read_text()
            assert "example" not in text.lower(), each


def test_all_of_the_template_is_written(tmp_path: Path, new_plugin: Callable[..., Done]) -> None:
    done = new_plugin("example2")
    assert done.returncode == 0, done.stderr
    root = template._root()
    kept = {".github", ".gitignore"}  # other hidden files are left by tools
    copied = {
        each
        for each in paths(root)
        if "__pycache__" not in each and (each[0] != "." or each.partition("/")[0] in kept)
    }
    written = paths(tmp_path / "pparallel-example2")
    assert {each.replace("example2", "example") for each in written} == copied
    for each in written:
        assert f"\n  {each}\n" in done.stdout
    assert done.stdout.startswith(
        "wrote pparallel-example2: backend 'example2' of interfaces pool, ordered_server\n"
    )
    assert "\n  cd pparallel-example2\n  pip install -e '.[dev]'\n  pytest " in done.stdout
    _, _, own = done.stdout.partition("then make your own:\n")
    for each in ("pparallel_example2/pool_config.py", "README.md", "pyproject.toml"):
        assert each in own
        assert each in written


def test_where_it_is_written(tmp_path: Path, new_plugin: Callable[..., Done]) -> None:
    (tmp_path / "mine").mkdir()
    done = new_plugin("shelf", "--directory", "mine", "--interface", "pool")
    assert done.returncode == 0, done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["pparallel-shelf"]
    assert (tmp_path / "mine" / "pparallel-shelf").stat().st_mode & 0o777 == 0o777 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_names() -> None:
    assert names_of("json-lines") == (
        "pparallel-json-lines",
        "pparallel_json_lines",
        "JsonLines",
        "json_lines",
    )
    assert names_of("s3").prefix == "S3"


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("JSON_Lines", "json-lines"),
        ("pparallel-shelf", "shelf"),
        ("pparallel_shelf", "shelf"),
        ("a b", "a-b"),
        ("7up", "up"),
        ("a--b", "a-b"),
        ("../shelf", "shelf"),
        ("x" * 50, "x" * 26),
        ("", ""),
        ("ключ", ""),
        ("pparallel", ""),
        ("shelf\n", "shelf"),
    ],
)
def test_names_that_cannot_be(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a plugin") as caught:
        check_name(name)
    assert str(caught.value).endswith(f"For example: {near}" if near else "put before it.")
    if near:
        check_name(near)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["Shelf"], "'Shelf' cannot name a plugin: .* For example: shelf"),
        (["thread"], "pparallel offers pool backend 'thread' already, .*: choose another name"),
        (["local"], "a package pparallel_local is installed already: choose another name"),
        (["shelf", "--interface", "pol"], r"interface 'pol'; .*\. Did you mean 'pool'\?"),
        (["shelf", "--interface", "transport"], "'transport'; there are pool, ordered_server"),
        (["shelf", "--directory", "none"], "there is no folder none to write pparallel-shelf in"),
        (["taken"], "pparallel-taken exists already, and is left as it is"),
    ],
)
def test_what_is_refused_changes_nothing(
    tmp_path: Path, args: list[str], message: str, new_plugin: Callable[..., Done]
) -> None:
    (tmp_path / "pparallel-taken").write_text("mine")
    done = new_plugin(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.search(f"^pparallel: .*{message}", done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["pparallel-taken"]
    assert (tmp_path / "pparallel-taken").read_text() == "mine"


def test_a_name_that_another_interface_has_is_no_obstacle(new_plugin: Callable[..., Done]) -> None:
    done = new_plugin("sqlite", "--interface", "pool")
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pparallel.cli.new_plugin.writing import write_all

    def refuse(path: Path, text: str, encoding: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_all(tmp_path / "shelf", {"a/b": "text"})
    assert list(tmp_path.iterdir()) == []


def test_an_installation_without_the_template_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "_PLACES", (tmp_path / "template",))
    with pytest.raises(ConfigError, match=r"template is missing .*: install pparallel again"):
        template.files(names_of("shelf"), template.INTERFACES)
