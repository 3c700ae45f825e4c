"""Reducers that need nothing but this machine."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_reducers.config import GradServerReducerConfig, LocalReducerConfig

__all__ = ["GradServerReducerConfig", "LocalReducerConfig", "pparallel_backends"]

TORCH = "pip install 'pparallel[torch]'"


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the reducers ``grad_server`` and ``local``."""
    return [
        Backend(
            GradServerReducerConfig,
            "pparallel_reducers.grad_server:GradServerReducer",
            install=TORCH,
            features=frozenset({"shared"}),
            requires=("torch",),
        ),
        Backend(
            LocalReducerConfig,
            "pparallel_reducers.local:LocalReducer",
            install=TORCH,
            requires=("torch",),
        ),
    ]
