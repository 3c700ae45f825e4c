"""What the members of a world say of themselves, and whether it fits together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from pydantic import SecretStr


class Card(NamedTuple):
    """What a member says of itself."""

    name: str
    rank: int
    size: int
    transport: str

    @classmethod
    def read(cls, line: bytes | bytearray) -> Self | None:
        """Return what *line* says; ``None``: it is none of ours."""
        try:
            found = json.loads(line)
            card = cls(*(found[field] for field in cls._fields))
        except (ValueError, KeyError, TypeError):
            return None
        kinds = (str, int, int, str)
        return card if all(map(isinstance, card, kinds)) else None

    def written(self) -> bytes:
        """Return the line that says so."""
        return json.dumps(self._asdict()).encode() + b"\n"

    @property
    def words(self) -> str:
        """The member, in an error."""
        return f"rank {self.rank} ({self.name!r})"


class Told(NamedTuple):
    """What a member is told when all have come."""

    names: tuple[str, ...]
    address: str
    keys: Mapping[str, SecretStr]


def misfit(card: Card, others: Sequence[Card]) -> str:
    """Return what keeps *card* from being of one world with *others*; rank 0 is their first."""
    first = others[0]
    if card.size != first.size:
        sizes = f"{card.words} says {card.size}, {first.words} {first.size}"
        return f"world_size is the same in all members: {sizes}"
    if not 0 <= card.rank < card.size:
        return f"ranks go from 0 to world_size - 1: {card.words} of {card.size} cannot be"
    for each in others:
        if each.rank == card.rank:
            return f"{each.name!r} and {card.name!r} both say that they are rank {card.rank}"
        if each.name == card.name:
            return f"ranks {each.rank} and {card.rank} are both called {card.name!r}"
    if card.transport != first.transport:
        said = f"{card.words} says {card.transport}, {first.words} {first.transport}"
        return f"PPARALLEL_MACHIN_TRANSPORT is the same in all members: {said}"
    return ""


def in_words(ranks: Sequence[int]) -> str:
    """Return what some ranks are called in an error."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
