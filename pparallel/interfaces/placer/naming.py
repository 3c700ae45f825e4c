"""What models are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def named(models: Mapping[str, T] | Sequence[T]) -> dict[str, T]:
    """Return *models* by name; those of a sequence are named by their index.

    Raises:
        ValueError: two names are the same as text, as 1 and "1" are.
    """
    if not isinstance(models, Mapping):
        return {str(at): model for at, model in enumerate(models)}
    given: dict[str, object] = {}
    for name in models:
        if given.setdefault(str(name), name) is not name:
            message = (
                f"models {given[str(name)]!r} and {name!r} have one name: a placement names models"
                f" by text, {str(name)!r}; rename one"
            )
            raise ValueError(message)
    return {str(name): model for name, model in models.items()}
