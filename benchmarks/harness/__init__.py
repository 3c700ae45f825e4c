"""What every benchmark stands on: contests in interleaved rounds, and what comes of them.

A benchmark is a module of `benchmarks` with a mapping ``CONTESTS``: name to a context manager that
opens the contenders and yields a `Contest`.
"""

from __future__ import annotations

from benchmarks.harness.contest import Aim, Contest, Making, Samples, Setting, Turn
from benchmarks.harness.timing import timed

__all__ = ["Aim", "Contest", "Making", "Samples", "Setting", "Turn", "timed"]
