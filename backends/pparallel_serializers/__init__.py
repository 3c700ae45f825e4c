"""Serializers: ``pickle`` and ``dill``."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_serializers.config import DillSerializerConfig, PickleSerializerConfig
from pparallel_serializers.names import mark_static_module

__all__ = [
    "DillSerializerConfig",
    "PickleSerializerConfig",
    "mark_static_module",
    "pparallel_backends",
]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the serializers."""
    return [
        Backend(
            PickleSerializerConfig,
            "pparallel_serializers.pickle:PickleSerializer",
            features=frozenset({"objects"}),
        ),
        Backend(
            DillSerializerConfig,
            "pparallel_serializers.dill:DillSerializer",
            features=frozenset({"code", "objects"}),
            requires=("dill",),
        ),
    ]
