"""Serializers: ``pickle``, ``dill``, ``cloudpickle`` and ``safe``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
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
            "serializer",
            "pickle",
            config="pparallel_serializers.config:PickleSerializerConfig",
            target="pparallel_serializers.pickle:PickleSerializer",
            features=frozenset({"objects"}),
        ),
        Backend(
            "serializer",
            "dill",
            config="pparallel_serializers.config:DillSerializerConfig",
            target="pparallel_serializers.dill:DillSerializer",
            features=frozenset({"code", "objects"}),
        ),
        Backend(
            "serializer",
            "cloudpickle",
            config="pparallel_serializers.config:CloudpickleSerializerConfig",
            target="pparallel_serializers.cloudpickle:CloudpickleSerializer",
            install="pip install 'pparallel[cloudpickle]'",
            features=frozenset({"code", "objects"}),
            requires=("cloudpickle",),
        ),
        Backend(
            "serializer",
            "safe",
            config="pparallel_serializers.config:SafeSerializerConfig",
            target="pparallel_serializers.safe:SafeSerializer",
        ),
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "pparallel_serializers.by_value.names": ("mark_static_module",),
            "pparallel_serializers.config": (
                "CloudpickleSerializerConfig",
                "DillSerializerConfig",
                "PickleSerializerConfig",
                "SafeSerializerConfig",
            ),
        },
    )
