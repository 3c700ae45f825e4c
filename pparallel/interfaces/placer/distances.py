"""How far devices are from one another: by kind, as given, or as measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel.interfaces.placer.device import Device
from pparallel.machine import gpus

if TYPE_CHECKING:
    from pparallel.interfaces.placer.config import PlacerConfig

MEASURED_MB = 16  #: what is copied to measure a distance


def distances(devices: tuple[Device, ...], config: PlacerConfig) -> tuple[tuple[float, ...], ...]:
    """Return the distances between *devices*, symmetric, with 0 on the diagonal.

    Raises:
        ValueError: two devices have two distances, a device has one to itself, or measuring is
            asked for with devices that are not there.
    """
    given = _given(config)
    rows: list[list[float]] = [[0.0] * len(devices) for _ in devices]
    for i, one in enumerate(devices):
        for j, other in enumerate(devices[:i]):
            rows[i][j] = rows[j][i] = _distance(one, other, given, config)
    return tuple(map(tuple, rows))


def _distance(
    one: Device, other: Device, given: dict[frozenset[str], float], config: PlacerConfig
) -> float:
    pair = frozenset((one.name, other.name))
    if pair in given:
        return given[pair]
    if config.measure_distances:
        return _rounded(1000 * gpus.copy_seconds(one.name, other.name, MEASURED_MB * 2**20))
    return config.cpu_gpu_distance if one.is_cpu or other.is_cpu else config.gpu_gpu_distance


def _given(config: PlacerConfig) -> dict[frozenset[str], float]:
    found: dict[frozenset[str], float] = {}
    for one, row in config.distances.items():
        for other, distance in row.items():
            first, second = gpus.canonical(one), gpus.canonical(other)
            pair = frozenset((first, second))
            if first == second:
                message = f"distances: {one} has a distance to itself, which is 0; leave it out"
                raise ValueError(message)
            if found.setdefault(pair, distance) != distance:
                message = (
                    f"distances: {one} and {other} are {found[pair]:g} apart and {distance:g}"
                    " apart; give one"
                )
                raise ValueError(message)
    return found


def _rounded(measured: float) -> float:
    """Return two digits of what was measured: no two measurements agree in more."""
    return float(f"{measured:.1e}")
