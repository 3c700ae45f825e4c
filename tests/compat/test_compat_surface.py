"""Each name of the seeds is there, takes what it took, and has a row in the docs."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from seeds_surface import SURFACE

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT.parent / "shared" / "seeds-surface.md"  #: what the project was given, where it is there
ENTRY = re.compile(r"^(?P<name>\w+)(?P<takes>\(.*\))?$", re.S)


@dataclass(frozen=True)
class Entry:
    """One name: its module, the class that has it if one does, and what it takes, if that is said.

    Attributes:
        module: below ``pparallel.compat``.
        owner: the class, or empty.
        name: the name.
        takes: its parameters as Python writes them, ``None`` if they are not said.
    """

    module: str
    owner: str
    name: str
    takes: str | None

    @property
    def dotted(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name

    def find(self) -> Any:
        found = importlib.import_module(f"pparallel.compat.{self.module}")
        for name in self.dotted.split("."):
            found = getattr(found, name)
        return found


def entries() -> Iterator[Entry]:
    for module, text in SURFACE.items():
        owner = ""
        for statement in _statements(textwrap.dedent(text).strip("\n")):
            match = ENTRY.match(statement.strip())
            assert match, statement
            nested = statement.startswith(" ")
            owner = owner if nested else match["name"]
            yield Entry(module, owner if nested else "", match["name"], match["takes"])


def _statements(text: str) -> Iterator[str]:
    """Join the lines of one name: as many as its parentheses need."""
    kept = ""
    for line in text.splitlines():
        kept = f"{kept} {line.strip()}" if kept else line
        if kept.count("(") == kept.count(")"):
            yield kept
            kept = ""


ENTRIES = list(entries())
TAKING_OF = {
    module: [each for each in ENTRIES if each.module == module and each.takes is not None]
    for module in SURFACE
}
EMPTY = inspect.Parameter.empty
NEEDING = ("positional", "keyword")
Parameter = tuple[str, str, object]  #: name, kind, default


def wanted(entry: Entry) -> list[Parameter]:
    """Return name, kind and default of each parameter that the seed has."""
    assert entry.takes is not None
    function = ast.parse(f"def f{entry.takes}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    takes = function.args
    defaults = [EMPTY] * (len(takes.args) - len(takes.defaults)) + [*map(_value, takes.defaults)]
    rest = [] if takes.vararg is None else [takes.vararg]
    return [
        *(
            (each.arg, "positional", value)
            for each, value in zip(takes.args, defaults, strict=True)
        ),
        *((each.arg, "rest", EMPTY) for each in rest),
        *(
            (each.arg, "keyword", _value(value))
            for each, value in zip(takes.kwonlyargs, takes.kw_defaults, strict=True)
        ),
    ]


def _value(node: Any) -> Any:
    if isinstance(node, ast.Name):
        return getattr(torch.distributed.ReduceOp, node.id)
    return ast.literal_eval(node)


KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.VAR_POSITIONAL: "rest",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_KEYWORD: "any",
}


def taken(entry: Entry) -> list[Parameter]:
    """Return what ours takes, without the object itself."""
    found = entry.find()
    parameters = list(inspect.signature(found).parameters.values())
    if entry.owner:
        is_bound = isinstance(inspect.getattr_static(_owner(entry), entry.name), staticmethod)
        parameters = parameters if is_bound else parameters[1:]
    return [(each.name, KINDS[each.kind], each.default) for each in parameters]


def _owner(entry: Entry) -> Any:
    return getattr(importlib.import_module(f"pparallel.compat.{entry.module}"), entry.owner)


@pytest.mark.parametrize("module", SURFACE)
def test_names(module: str) -> None:
    missing = [each.dotted for each in ENTRIES if each.module == module and not _has(each)]
    assert not missing


def _has(entry: Entry) -> bool:
    try:
        entry.find()
    except AttributeError:
        # an attribute that only an object has is told of in the docstring of its class
        owner = inspect.getdoc(_owner(entry)) if entry.owner and entry.takes is None else None
        return owner is not None and re.search(rf"^\s*{entry.name}:", owner, re.M) is not None
    return True


@pytest.mark.parametrize("module", SURFACE)
def test_parameters_and_defaults(module: str) -> None:
    found = {each.dotted: fault(wanted(each), taken(each)) for each in TAKING_OF[module]}
    assert {name: each for name, each in found.items() if each} == {}


def fault(expected: list[Parameter], ours: list[Parameter]) -> str:
    """Return what is wrong with a list of parameters; it may go on with some that have defaults."""
    by_name = {each[0]: each for each in ours}
    if wrong := [each for each in expected if by_name.get(each[0]) != each]:
        return f"wants {wrong}, has {ours}"
    order = [name for name, kind, _ in expected if kind == "positional"]
    if [name for name, kind, _ in ours if kind == "positional"][: len(order)] != order:
        return f"wants {order} in this order, has {ours}"
    needed = [name for name, kind, default in ours if kind in NEEDING and default is EMPTY]
    if extra := set(needed) - {name for name, *_ in expected}:
        return f"needs {extra} too"
    return ""


@pytest.mark.parametrize("module", SURFACE)
def test_every_name_has_a_row(module: str) -> None:
    page = ROOT / "docs" / "moving" / f"{module.replace('.', '_')}.md"
    rows = re.findall(r"^\| `([\w.]+)`((?:[^|\n]*\|){4})$", page.read_text(), re.M)
    told = {name for name, cells in rows if cells.split("|")[1].strip()}
    assert {each.dotted for each in ENTRIES if each.module == module} - told == set()


#: what stands in the list in this form and is no name: calls in its sentences
NO_NAMES = {'get_paired("server").to_here()', "fn(index, *args)", "wait()"}


@pytest.mark.skipif(not LIST.exists(), reason="the list that the project was given is not there")
def test_the_list_is_the_one_that_was_given() -> None:
    """Each name with parameters in that list is in ours, with the same ones."""
    known = {(each.name, _plain(each.takes or "")) for each in ENTRIES}
    spans = re.findall(r"`([^`]+)`", " ".join(LIST.read_text().split()))
    stated = [re.match(r"^([\w/]+)(\(.*\))$", each) for each in spans if each not in NO_NAMES]
    given = {
        (name, _plain(each[2]))
        for each in stated
        if each is not None
        for name in each[1].split("/")
    }
    assert len(given) > 100
    assert given - known == set()


def _plain(takes: str) -> str:
    """Drop what differs in writing alone, and what the list says of shapes and of the rest."""
    bare = re.sub(r" \[[^\]]*\]|, \*\*_", "", takes)
    return "".join(bare.split())


def test_each_test_that_the_pages_name_is_there() -> None:
    tests = "".join(each.read_text() for each in (ROOT / "tests").glob("*/test_*.py"))
    pages = "".join(each.read_text() for each in (ROOT / "docs" / "moving").glob("*.md"))
    named = set(re.findall(r"`(?:test_\w+\.py::)?(test_\w+)`", pages))
    assert len(named) > 20
    assert {each for each in named if f"def {each}(" not in tests} == set()
