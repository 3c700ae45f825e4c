"""The page about events names every kind, with its fields."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pparallel.runtime.events as package
from pparallel.runtime.events import Event

PAGE = Path(__file__).resolve().parents[2] / "docs" / "events.md"
COMMON = {each.name for each in dataclasses.fields(Event)}

Row = tuple[str, list[str]]


def told() -> dict[str, Row]:
    """The table of the page: kind and fields by class."""
    rows = re.findall(r"^\| `(\w+)` \| `([a-z.]+)` \|([^|]*)\|", PAGE.read_text(), re.M)
    return {name: (kind, re.findall(r"`(\w+)`", fields)) for name, kind, fields in rows}


def kinds() -> list[type[Event]]:
    """All kinds of events that there are."""
    classes = [each for each in vars(package).values() if isinstance(each, type)]
    return [each for each in classes if issubclass(each, Event) and hasattr(each, "kind")]


def test_the_table_has_every_kind_with_its_fields() -> None:
    assert told() == {
        each.__name__: (
            each.kind,
            [field.name for field in dataclasses.fields(each) if field.name not in COMMON],
        )
        for each in kinds()
    }


def test_every_kind_can_be_imported_from_where_the_page_says() -> None:
    assert {each.__name__ for each in kinds()} <= set(package.__all__)


def test_no_two_kinds_share_a_word() -> None:
    words = [each.kind for each in kinds()]
    assert len(words) == len(set(words)) > 0
