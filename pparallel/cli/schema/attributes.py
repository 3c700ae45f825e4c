"""What the docstrings of configs say about their fields; pages of the docs are made of it too."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping

_SECTION = re.compile(r"^Attributes:\n((?:[ \t]+.*\n|\n)*)", re.M)
_ENTRY = re.compile(r"^ {4}(\w+)(?: \([^)]*\))?: *(.*(?:\n {5,}.*|\n(?=\n* {5,}))*)", re.M)
_ROLE = re.compile(r":[a-z:]+:`~?\.?([^`<]+)(?: <[^>]*>)?`")


def descriptions(cls: type[object]) -> Mapping[str, str]:
    """Return what the ``Attributes:`` sections of *cls* and its bases say, by field.

    What a class says of a field goes before what its bases say.
    """
    found: dict[str, str] = {}
    for each in cls.__mro__:
        for name, text in _entries(each).items():
            found.setdefault(name, text)
    return found


def summary(cls: type[object]) -> str:
    """Return what the docstring of *cls* says before its sections; empty if it has none."""
    doc = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    return _markdown(re.split(r"^[A-Z]\w+:\n", doc, maxsplit=1, flags=re.M)[0])


def _entries(cls: type[object]) -> dict[str, str]:
    doc = inspect.cleandoc(cls.__dict__.get("__doc__") or "") + "\n"
    section = _SECTION.search(doc)
    if section is None:
        return {}
    return {match[1]: _markdown(match[2]) for match in _ENTRY.finditer(section[1])}


def _markdown(text: str) -> str:
    """Return a docstring's text with code between single backticks, a paragraph in a line."""
    text = _ROLE.sub(r"`\1`", text).replace("``", "`")
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)
