"""A placement as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel.errors import MissingDependencyError
from pparallel.interfaces.placer.table import between

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pparallel.interfaces.placer.placement import Placement


def drawn(placement: Placement) -> Figure:
    """Return a figure of the devices with what is on them, and of what they exchange.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        install = "pip install matplotlib"
        raise MissingDependencyError("Placement.plot", str(error), install) from error
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_loads(placement, left)
    _draw_traffic(placement, right)
    figure.suptitle(f"cost {placement.cost:.4g}")
    return figure


def _draw_loads(placement: Placement, axes: Axes) -> None:
    names = [each.name for each in placement.devices]
    heights = dict.fromkeys(names, 0.0)
    for model, device, size in zip(
        placement.models, placement.assignment, placement.sizes_mb, strict=True
    ):
        (bar,) = axes.bar(names.index(device), size, bottom=heights[device], edgecolor="white")
        middle = heights[device] + size / 2
        axes.text(bar.get_x() + bar.get_width() / 2, middle, model, ha="center", va="center")
        heights[device] += size
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("MB")
    axes.set_title("models on devices")


def _draw_traffic(placement: Placement, axes: Axes) -> None:
    names = [each.name for each in placement.devices]
    amounts = [[0.0] * len(names) for _ in names]
    for (one, other), much in between(placement).items():
        i, j = names.index(one), names.index(other)
        amounts[i][j] = amounts[j][i] = much
    axes.imshow(amounts, cmap="Blues", vmin=0)
    for i, row in enumerate(amounts):
        for j, much in enumerate(row):
            axes.text(j, i, f"{much:g}", ha="center", va="center", color="tab:red")
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set_title("exchanged between devices")
