"""Threads that receive for a member, one at a time, and run what is asked if it is quick."""

from __future__ import annotations

from pparallel.runtime.leading.leaders import Leaders
from pparallel.runtime.leading.patience import Patience

__all__ = ["Leaders", "Patience"]
