"""What a callback is given and returns."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MASTER = 0  #: the identifier that stands for the master

Messages = list[tuple[Any, Any]]  #: identifier and message, the master's first
Callback = Callable[[Messages], Iterable[tuple[Any, Any]]]


def matched(results: Any, wanted: Sequence[Any]) -> dict[Any, Any]:
    """Return what a callback returned, by identifier.

    Args:
        results: pairs of identifier and result, the master's first.
        wanted: the identifiers of which there must be one each.

    Raises:
        ValueError: they are not that.
    """
    try:
        pairs = [(identifier, result) for identifier, result in results]
        found = dict(pairs)
    except (TypeError, ValueError) as error:
        raise ValueError(_refusal(f"not {reprlib.repr(results)}")) from error
    if not pairs or pairs[0][0] != MASTER:
        first = f"that of {pairs[0][0]!r}" if pairs else "there is nothing"
        raise ValueError(_refusal(f"the master's first, but {first}"))
    if missing := [each for each in wanted if each not in found]:
        raise ValueError(_refusal(f"and there is no result for {_listed(missing)}"))
    if unknown := [each for each in found if each not in wanted]:
        raise ValueError(_refusal(f"but {_listed(unknown)} is nobody's identifier"))
    if len(pairs) != len(found):
        twice = [each for each, _ in pairs[len(found) :]]
        raise ValueError(_refusal(f"one for each, but {_listed(twice)} has more"))
    return found


def _refusal(fault: str) -> str:
    return f"the callback must return [(0, result), (identifier, result), ...], {fault}"


def _listed(identifiers: Sequence[Any]) -> str:
    return ", ".join(map(repr, identifiers))
