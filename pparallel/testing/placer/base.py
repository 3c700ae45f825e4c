"""What the parts of the placers' suite share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import pytest

from pparallel.interfaces.placer import Device, Placement, Placer, PlacerConfig
from pparallel.testing.placer.instances import Instance
from pparallel.testing.suite import Suite, changed


class Place(Protocol):
    """Places with the placer under test, some of its options changed."""

    def __call__(
        self,
        models: Any,
        connections: Mapping[tuple[Any, Any], float],
        devices: Any = None,
        **options: object,
    ) -> Placement: ...


class PlacerTests(Suite):
    """One placer, asked this and that."""

    interface: ClassVar[str] = "placer"
    rounds: ClassVar[int] = 40

    @pytest.fixture
    def place(self, config: PlacerConfig, build: Callable[..., Placer]) -> Place:
        """What places with the placer under test."""

        def place(
            models: Any,
            connections: Mapping[tuple[Any, Any], float],
            devices: Any = None,
            **options: object,
        ) -> Placement:
            with build(changed(config, **options)) as placer:
                return placer.place(models, connections, devices)

        return place


def solved(place: Place, instance: Instance) -> Placement:
    """Return where *place* puts the models of an instance."""
    return place(instance.sizes, instance.connections, instance.devices, **instance.options)


def gpus(count: int, memory_mb: float) -> list[Device]:
    """Return as many GPUs, alike and idle."""
    return [Device(f"cuda:{at}", memory_mb, 1.0) for at in range(count)]
