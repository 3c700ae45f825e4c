"""Reducers that need nothing but this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
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
            "reducer",
            "all_reduce",
            config="pparallel_reducers.config:AllReduceReducerConfig",
            target="pparallel_reducers.all_reduce.reducer:AllReduceReducer",
            install=TORCH,
            features=frozenset({"shared"}),
            requires=("torch",),
        ),
        Backend(
            "reducer",
            "diloco",
            config="pparallel_reducers.config:DilocoReducerConfig",
            target="pparallel_reducers.diloco.reducer:DilocoReducer",
            install=TORCH,
            features=frozenset({"shared"}),
            requires=("torch",),
        ),
        Backend(
            "reducer",
            "grad_server",
            config="pparallel_reducers.config:GradServerReducerConfig",
            target="pparallel_reducers.grad_server.reducer:GradServerReducer",
            install=TORCH,
            features=frozenset({"shared"}),
            requires=("torch",),
        ),
        Backend(
            "reducer",
            "local",
            config="pparallel_reducers.config:LocalReducerConfig",
            target="pparallel_reducers.local:LocalReducer",
            install=TORCH,
            requires=("torch",),
        ),
        Backend(
            "reducer",
            "model_server",
            config="pparallel_reducers.config:ModelServerReducerConfig",
            target="pparallel_reducers.model_server.reducer:ModelServerReducer",
            install=TORCH,
            features=frozenset({"shared"}),
            requires=("torch",),
        ),
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "pparallel_reducers.compression.config": (
                "Bf16CompressionConfig",
                "PowerSgdCompressionConfig",
                "TopKCompressionConfig",
            ),
            "pparallel_reducers.config": (
                "AllReduceReducerConfig",
                "DilocoReducerConfig",
                "GradServerReducerConfig",
                "LocalReducerConfig",
                "ModelServerReducerConfig",
            ),
        },
    )
