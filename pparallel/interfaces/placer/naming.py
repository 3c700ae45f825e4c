"""What models are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def named(models: Mapping[str, T] | Sequence[T]) -> dict[str, T]:
    """Return *models* by name; those of a sequence are named by their index."""
    if isinstance(models, Mapping):
        return {str(name): model for name, model in models.items()}
    return {str(at): model for at, model in enumerate(models)}
