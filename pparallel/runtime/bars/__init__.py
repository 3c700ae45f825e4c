"""Progress bars of pools: tqdm's, rich's, or the user's own.

A bar is decoration. Whatever goes wrong with it is said once, in the log, and the work goes on
without a bar.
"""

from __future__ import annotations

import logging
from functools import partial
from importlib import import_module

from pparallel.interfaces.pool import MakeBar, Metering, Progress
from pparallel.runtime.bars.meter import BarMeter

__all__ = ["hide", "metering"]

logger = logging.getLogger(__name__)

_MODULES = {
    True: "pparallel.runtime.bars.tqdm_bars",
    "tqdm": "pparallel.runtime.bars.tqdm_bars",
    "notebook": "pparallel.runtime.bars.tqdm_bars",
    "rich": "pparallel.runtime.bars.rich_bars",
}
_refused: set[str] = set()  # libraries whose absence was told
_hidden = False


def metering(progress: Progress) -> Metering | None:
    """Return what shows bars as the config says, None: there are none to show."""
    if progress is False or _hidden:
        return None
    make = progress if callable(progress) else _maker(progress)
    return make and partial(BarMeter, make)


def hide() -> None:
    """Show no bars from now on: called in a worker process, whose terminal is its parent's."""
    global _hidden
    _hidden = True


def _maker(kind: bool | str) -> MakeBar | None:
    try:
        make: MakeBar = import_module(_MODULES[kind]).maker(kind)
    except Exception as error:  # noqa: BLE001 - broken libraries raise anything
        library = "rich" if kind == "rich" else "tqdm"
        if library not in _refused:
            _refused.add(library)
            logger.warning(
                "No progress bars: %s. To have them: pip install 'pparallel[progress]'", error
            )
        return None
    return make
