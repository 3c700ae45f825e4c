"""Serializers: ``pickle``, ``dill``, ``cloudpickle`` and ``safe``."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_serializers.by_value.names import mark_static_module
from pparallel_serializers.config import (
    CloudpickleSerializerConfig,
    DillSerializerConfig,
    PickleSerializerConfig,
    SafeSerializerConfig,
)

__all__ = [
    "CloudpickleSerializerConfig",
    "DillSerializerConfig",
    "PickleSerializerConfig",
    "SafeSerializerConfig",
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
        ),
        Backend(
            CloudpickleSerializerConfig,
            "pparallel_serializers.cloudpickle:CloudpickleSerializer",
            install="pip install 'pparallel[cloudpickle]'",
            features=frozenset({"code", "objects"}),
            requires=("cloudpickle",),
        ),
        Backend(SafeSerializerConfig, "pparallel_serializers.safe:SafeSerializer"),
    ]
