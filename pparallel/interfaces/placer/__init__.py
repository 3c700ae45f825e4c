"""Placer: assign models to devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy

if TYPE_CHECKING:
    from pparallel.interfaces.placer.config import PlacerConfig
    from pparallel.interfaces.placer.device import Device
    from pparallel.interfaces.placer.placement import Placement
    from pparallel.interfaces.placer.placer import Placer
    from pparallel.interfaces.placer.problem import Problem, Solution

__all__ = ["Device", "Placement", "Placer", "PlacerConfig", "Problem", "Solution"]

if not TYPE_CHECKING:  # a config needs no more than its own module
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            f"{__name__}.config": ("PlacerConfig",),
            f"{__name__}.device": ("Device",),
            f"{__name__}.placement": ("Placement",),
            f"{__name__}.placer": ("Placer",),
            f"{__name__}.problem": ("Problem", "Solution"),
        },
    )
