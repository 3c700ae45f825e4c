"""Reducers that need nothing but this machine."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_reducers.compression.config import (
    Bf16CompressionConfig,
    PowerSgdCompressionConfig,
    TopKCompressionConfig,
)
from pparallel_reducers.config import (
    AllReduceReducerConfig,
    DilocoReducerConfig,
    GradServerReducerConfig,
    LocalReducerConfig,
    ModelServerReducerConfig,
)

__all__ = [
    "AllReduceReducerConfig",
    "Bf16CompressionConfig",
    "DilocoReducerConfig",
    "GradServerReducerConfig",
    "LocalReducerConfig",
    "ModelServerReducerConfig",
    "PowerSgdCompressionConfig",
    "TopKCompressionConfig",
    "pparallel_backends",
]

TORCH = "pip install 'pparallel[torch]'"


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer ``all_reduce``, ``diloco``, ``grad_server``, ``local`` and ``model_server``."""
    return [
        Backend(
            AllReduceReducerConfig,
            "pparallel_reducers.all_reduce.reducer:AllReduceReducer",
            install=TORCH,
            features=frozenset({"shared"}),
            requires=("torch",),
        ),
        Backend(
            DilocoReducerConfig,
            "pparallel_reducers.diloco.reducer:DilocoReducer",
            install=TORCH,
            features=frozenset({"shared"}),
            requires=("torch",),
        ),
        Backend(
            GradServerReducerConfig,
            "pparallel_reducers.grad_server.reducer:GradServerReducer",
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
        Backend(
            ModelServerReducerConfig,
            "pparallel_reducers.model_server.reducer:ModelServerReducer",
            install=TORCH,
            features=frozenset({"shared"}),
            requires=("torch",),
        ),
    ]
