"""The exact placer: the best placement, with proof."""

from __future__ import annotations

from pparallel_placers.exact.placer import ExactPlacer

__all__ = ["ExactPlacer"]
