"""A transport that fails as networks do, around any other; by a seed, so that it can be repeated.

In a config::

    transport:
      backend: chaos
      drop_request: 0.1
      duplicate: 0.2
      seed: 3
      transport: {backend: local}

or, around a config that is there, ``chaotic(config, drop_request=0.1, duplicate=0.2, seed=3)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
    from pparallel.testing.chaos.config import ChaosTransportConfig, chaotic

__all__ = ["ChaosTransportConfig", "chaotic", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the transport."""
    return [
        Backend(
            "transport",
            "chaos",
            config="pparallel.testing.chaos.config:ChaosTransportConfig",
            target="pparallel.testing.chaos.transport:ChaosTransport",
        )
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "pparallel.testing.chaos.config": ("ChaosTransportConfig", "chaotic"),
        },
    )
