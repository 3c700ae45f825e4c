"""Placers: which model goes to which device."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_placers.config import (
    ExactPlacerConfig,
    GradientPlacerConfig,
    GreedyPlacerConfig,
)

__all__ = [
    "ExactPlacerConfig",
    "GradientPlacerConfig",
    "GreedyPlacerConfig",
    "pparallel_backends",
]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the placers ``exact``, ``gradient`` and ``greedy``."""
    return [
        Backend(
            ExactPlacerConfig,
            "pparallel_placers.exact:ExactPlacer",
            install="pip install 'pparallel[placement]'",
            features=frozenset({"proven"}),
        ),
        Backend(
            GradientPlacerConfig,
            "pparallel_placers.gradient:GradientPlacer",
            install="pip install 'pparallel[torch]'",
            requires=("numpy",),
        ),
        Backend(GreedyPlacerConfig, "pparallel_placers.greedy:GreedyPlacer"),
    ]
