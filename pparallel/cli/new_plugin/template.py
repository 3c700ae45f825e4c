"""The plugin that is copied: ``plugins/pparallel-example`` of the source tree, with other names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pparallel.cli.new_plugin.names import Names
from pparallel.errors import ConfigError

#: the interfaces that it fills, each with the files whose names hold this one
INTERFACES = ("pool", "ordered_server")

#: its own names, in the order of those that take their place; the longer go first
_OWN = ("pparallel-example", "pparallel_example", "Example", "example")

_HERE = Path(__file__).resolve().parent
_PLACES = (_HERE / "template", _HERE.parents[2] / "plugins" / "pparallel-example")
_PARTS = (
    ".github",
    ".gitignore",
    "LICENSE",
    "README.md",
    "pparallel_example",
    "pyproject.toml",
    "tests",
)


def files(names: Names, interfaces: Sequence[str]) -> dict[str, str]:
    """Return the files of a plugin, by their paths in its folder.

    Raises:
        ConfigError: the template is not installed.
    """
    left_out = [each for each in INTERFACES if each not in interfaces]
    found: dict[str, str] = {}
    root = _root()
    for path in _paths(root):
        if not any(each in path.name for each in left_out):
            text = path.read_text(encoding="utf-8")
            for each in left_out:
                text = _without(text, each, path.suffix)
            found[_renamed(path.relative_to(root).as_posix(), names)] = _renamed(text, names)
    return found


def _root() -> Path:
    """Return where the template is: beside this file in a wheel, else in the source tree."""
    for each in _PLACES:
        if (each / "pyproject.toml").is_file():
            return each
    message = f"the template is missing from this installation of pparallel ({_PLACES[0]})"
    raise ConfigError(f"{message}: install pparallel again")


def _paths(root: Path) -> Iterator[Path]:
    for part in _PARTS:
        whole = root / part
        inside = sorted(whole.rglob("*")) if whole.is_dir() else [whole]
        yield from (each for each in inside if each.is_file() and each.suffix != ".pyc")


def _renamed(text: str, names: Names) -> str:
    new = dict(zip(_OWN, names, strict=True))
    return re.sub("|".join(_OWN), lambda found: new[found[0]], text)


def _without(text: str, interface: str, suffix: str) -> str:
    """Leave out what is about one interface: imports and items of lists, or lines of a table."""
    lines = text.splitlines(keepends=True)
    if suffix == ".py":
        dropped = set(_lines_about(text, interface))
    else:
        dropped = {at for at, line in enumerate(lines, 1) if line.startswith(f"| `{interface}`")}
    return "".join(line for at, line in enumerate(lines, 1) if at not in dropped)


def _lines_about(source: str, interface: str) -> Iterator[int]:
    prefix = "Example" + "".join(word.capitalize() for word in interface.split("_"))
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr] | list[ast.ImportFrom] = []
        if isinstance(node, ast.ImportFrom):
            parts = [node]
        elif isinstance(node, ast.List):
            parts = node.elts
        for part in parts:
            if prefix in (ast.get_source_segment(source, part) or ""):
                yield from range(part.lineno, (part.end_lineno or part.lineno) + 1)
