"""``pparallel new-plugin``: what it writes works at once, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pparallel.cli.new_plugin import template
from pparallel.cli.new_plugin.names import check_name, names_of
from pparallel.errors import ConfigError


def new_plugin(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "pparallel", "new-plugin", *args, **env)


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {key: each for key, each in os.environ.items() if not key.startswith("PPARALLEL_")}
    return subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env={**kept, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


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


@pytest.mark.costly
class TestWritten:
    def test_the_suites_of_a_copy_pass(self, tmp_path: Path) -> None:
        done = new_plugin(tmp_path, "json-lines")
        assert done.returncode == 0, done.stderr
        folder = tmp_path / "pparallel-json-lines"
        environment = installed(folder, tmp_path / "site")
        chosen = "it_is_found or whole or refuses or order or wait or push or nested or callbacks"
        options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-k", chosen]
        done = run(folder, "-m", "pytest", *options, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 30

    def test_a_copy_is_listed_and_used_by_its_name(self, tmp_path: Path) -> None:
        new_plugin(tmp_path, "json-lines")
        environment = installed(tmp_path / "pparallel-json-lines", tmp_path / "site")
        listed = run(tmp_path, "-m", "pparallel", "backends", **environment).stdout
        rows = [line.split()[:5] for line in listed.splitlines() if "json_lines" in line]
        package = ["json_lines", "pparallel-json-lines", "0.1.0", "1"]
        assert rows == [["ordered_server", *package], ["pool", *package]]
        code = (
            "import pparallel\n"
            "with pparallel.build({'pool': {'backend': 'json_lines', 'size': 2}}) as rt:\n"
            "    print(type(rt.pool).__name__, rt.pool.map(abs, [-1, 2]))\n"
        )
        done = run(tmp_path, "-c", code, **environment)
        assert done.stdout == "JsonLinesPool [1, 2]\n", done.stderr

    @pytest.mark.parametrize("interface", template.INTERFACES)
    def test_a_copy_of_one_interface_has_nothing_of_the_other(
        self, tmp_path: Path, interface: str
    ) -> None:
        done = new_plugin(tmp_path, "shelf", "--interface", interface)
        assert done.returncode == 0, done.stderr
        folder = tmp_path / "pparallel-shelf"
        (other,) = set(template.INTERFACES) - {interface}
        assert not [each for each in paths(folder) if other in each]
        for each in ("pparallel_shelf/__init__.py", "README.md"):
            assert other not in (folder / each).read_text()
        environment = installed(folder, tmp_path / "site")
        code = "import pparallel_shelf as own; print(len(own.pparallel_backends()), own.__all__)"
        done = run(tmp_path, "-c", code, **environment)
        assert done.stdout.startswith("1 ['Shelf"), done.stderr

    def test_a_copy_is_clean(self, tmp_path: Path) -> None:
        new_plugin(tmp_path, "a-name-of-26-letters-in-it")
        (folder,) = tmp_path.iterdir()
        done = run(folder, "-m", "ruff", "check", "--no-cache")
        assert done.returncode == 0, done.stdout

    def test_an_example_is_written_nowhere(self, tmp_path: Path) -> None:
        new_plugin(tmp_path, "shelf")
        folder = tmp_path / "pparallel-shelf"
        for each in paths(folder):
            text = each + (folder / each).read_text()
            assert "example" not in text.lower(), each


def test_all_of_the_template_is_written(tmp_path: Path) -> None:
    done = new_plugin(tmp_path, "example2")
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


def test_where_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = new_plugin(tmp_path, "shelf", "--directory", "mine", "--interface", "pool")
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
def test_what_is_refused_changes_nothing(tmp_path: Path, args: list[str], message: str) -> None:
    (tmp_path / "pparallel-taken").write_text("mine")
    done = new_plugin(tmp_path, *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.search(f"^pparallel: .*{message}", done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["pparallel-taken"]
    assert (tmp_path / "pparallel-taken").read_text() == "mine"


def test_a_name_that_another_interface_has_is_no_obstacle(tmp_path: Path) -> None:
    done = new_plugin(tmp_path, "sqlite", "--interface", "pool")
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
