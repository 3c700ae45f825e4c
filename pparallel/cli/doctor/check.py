"""What came of a check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what.
        status: ``warn``: jobs run, some may not run well; ``fail``: jobs will not run.
        detail: what was found, in one line.
        advice: what to do about it; empty if nothing.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""


def guarded(name: str, make: Callable[[], Sequence[Check]]) -> Sequence[Check]:
    """Return the checks that *make* does, or one that says why it could not."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - machines differ: each surprise is a result too
        message = " ".join(str(error).split())
        detail = f"could not be checked: {type(error).__name__}: {message}"
        return [Check(name, "warn", detail, "please report this, with the line above")]


def size(count: float) -> str:
    """Return a number of bytes such as ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
