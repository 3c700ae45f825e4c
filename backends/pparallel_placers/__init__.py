"""Placers: which model goes to which device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
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
            "placer",
            "exact",
            config="pparallel_placers.config:ExactPlacerConfig",
            target="pparallel_placers.exact:ExactPlacer",
            install="pip install 'pparallel[placement]'",
            features=frozenset({"proven"}),
        ),
        Backend(
            "placer",
            "gradient",
            config="pparallel_placers.config:GradientPlacerConfig",
            target="pparallel_placers.gradient:GradientPlacer",
            install="pip install 'pparallel[torch]'",
            requires=("numpy",),
        ),
        Backend(
            "placer",
            "greedy",
            config="pparallel_placers.config:GreedyPlacerConfig",
            target="pparallel_placers.greedy:GreedyPlacer",
        ),
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(__name__, {"pparallel_placers.config": __all__})
