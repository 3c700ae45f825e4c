"""Placer: assign models to devices."""

from __future__ import annotations

from pparallel.interfaces.placer.config import PlacerConfig
from pparallel.interfaces.placer.device import Device
from pparallel.interfaces.placer.placement import Placement
from pparallel.interfaces.placer.placer import Placer
from pparallel.interfaces.placer.problem import Problem, Solution

__all__ = ["Device", "Placement", "Placer", "PlacerConfig", "Problem", "Solution"]
