"""Bars of tqdm, in a terminal or in a notebook."""

from __future__ import annotations

from typing import Any

from pparallel.interfaces.pool import Bar, MakeBar


def maker(kind: bool | str) -> MakeBar:
    """Return what makes tqdm's bars.

    Args:
        kind: ``tqdm`` or ``notebook``; ``True`` for whichever form suits.

    Raises:
        ImportError: there is no tqdm.
    """
    base = _base(kind)
    # In a terminal an inner bar makes way when it is done; widgets do not know of one another.
    widgets = any(each.__module__ == "tqdm.notebook" for each in base.__mro__)
    leave = True if widgets else None

    class Tqdm(base):  # type: ignore[misc, valid-type]
        monitor_interval = 0  # a thread that draws bars which stand still: we have one

    def make(name: str, total: int | None) -> Bar:
        bar: Bar = Tqdm(total=total, desc=name, leave=leave, mininterval=0, miniters=1)
        return bar

    return make


def _base(kind: bool | str) -> type[Any]:
    if kind == "tqdm":
        from tqdm import tqdm
    elif kind == "notebook":
        from tqdm.notebook import tqdm
    else:
        from tqdm.auto import tqdm
    found: type[Any] = tqdm
    return found
