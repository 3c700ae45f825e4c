"""A placement as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pparallel.interfaces.placer.placement import Placement


def explained(placement: Placement) -> str:
    """Return a table of the devices with what is on them, and what the cost consists of."""
    tables = [_devices(placement)]
    if len(placement.devices) > 1 and placement.connections:
        tables.append(_traffic(placement))
    terms = " + ".join(f"{value:.6g} ({name})" for name, value in placement.terms.items())
    lines = [line for table in tables for line in _aligned(table)]
    lines.append(f"cost {placement.cost:.6g}" + (f" = {terms}" if terms else ""))
    if placement.bound is not None:
        lines.append(
            f"no placement costs less than {placement.bound:.6g} (gap {placement.gap:.2%})"
        )
    return "\n".join(lines)


def between(placement: Placement) -> dict[tuple[str, str], float]:
    """Return how much each pair of devices exchanges; within a device under its name twice."""
    where = dict(zip(placement.models, placement.assignment, strict=True))
    order = {device.name: at for at, device in enumerate(placement.devices)}
    found: dict[tuple[str, str], float] = {}
    for one, other, much in placement.connections:
        first, second = sorted((where[one], where[other]), key=order.__getitem__)
        found[first, second] = found.get((first, second), 0.0) + much
    return found


def _devices(placement: Placement) -> list[tuple[str, ...]]:
    size, power = sum(placement.sizes_mb), sum(each.power or 0.0 for each in placement.devices)
    compute = sum(placement.compute.values())
    header = ("device", "models", "MB", "of MB", "size", "power")
    rows: list[tuple[str, ...]] = [(*header, "compute") if compute else header]
    for device in placement.devices:
        here = [at for at, name in enumerate(placement.assignment) if name == device.name]
        used = sum(placement.sizes_mb[at] for at in here)
        row = (
            device.name,
            ", ".join(placement.models[at] for at in here) or "-",
            f"{used:.1f}",
            "?" if device.memory_mb is None else f"{device.memory_mb:.1f}",
            _share(used, size),
            "?" if device.power is None else _share(device.power, power),
        )
        done = sum(placement.compute.get(placement.models[at], 0.0) for at in here)
        rows.append((*row, _share(done, compute)) if compute else row)
    return rows


def _traffic(placement: Placement) -> list[tuple[str, ...]]:
    found = between(placement)
    total = sum(found.values())
    rows: list[tuple[str, ...]] = [("exchanged", "amount", "share")]
    within = sum(much for (first, second), much in found.items() if first == second)
    rows.append(("within devices", f"{within:g}", _share(within, total)))
    for (first, second), much in found.items():
        if first != second:
            rows.append((f"{first} - {second}", f"{much:g}", _share(much, total)))
    return rows


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
