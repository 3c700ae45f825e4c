"""Moving models to where a placement has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pparallel.interfaces.placer.naming import named
from pparallel.machine import gpus

if TYPE_CHECKING:
    from torch import nn

    from pparallel.interfaces.placer.placement import Placement


def moved(
    placement: Placement, models: Mapping[str, nn.Module] | Sequence[nn.Module] | None
) -> dict[str, nn.Module]:
    """Move models to their devices, once none is seen to be unable to go; return them by name.

    Raises:
        ValueError: as :meth:`Placement.apply` says.
    """
    where = dict(zip(placement.models, placement.assignment, strict=True))
    chosen = _chosen(placement, models)
    _refuse_absent_devices(placement)
    _refuse_models_without_data(chosen)
    _refuse_shared_tensors(chosen, where)
    return {name: model.to(where[name]) for name, model in chosen.items()}


def _chosen(
    placement: Placement, models: Mapping[str, nn.Module] | Sequence[nn.Module] | None
) -> dict[str, nn.Module]:
    chosen = dict(placement.modules) if models is None else named(models)
    if set(chosen) == set(placement.models):
        return chosen
    known = ", ".join(placement.models)
    if models is not None:
        message = f"the placement is of {known}, and {', '.join(chosen) or 'nothing'} is given"
    else:
        message = (
            "the placement holds no models to move: it was made from sizes, or read; give them:"
            f" apply({{name: model, ...}}), of {known}"
        )
    raise ValueError(message)


def _refuse_absent_devices(placement: Placement) -> None:
    there = gpus.names()
    for name in placement.assignment:
        if name.startswith("cuda") and name not in there:
            message = (
                f"the placement needs {name}, which is not here; there are:"
                f" {', '.join([*there, 'cpu'])}"
            )
            raise ValueError(message)


def _refuse_models_without_data(models: Mapping[str, nn.Module]) -> None:
    for name, model in models.items():
        if any(each.is_meta for each in (*model.parameters(), *model.buffers())):
            message = (
                f"model {name!r} is on device meta and has no data to move: make it with"
                " to_empty(device=...), and load its parameters"
            )
            raise ValueError(message)


def _refuse_shared_tensors(models: Mapping[str, nn.Module], where: Mapping[str, str]) -> None:
    owners: dict[int, str] = {}
    for name, model in models.items():
        for each in (*model.parameters(), *model.buffers()):
            owner = owners.setdefault(id(each), name)
            if where[owner] != where[name]:
                message = (
                    f"models {owner!r} and {name!r} share a tensor and cannot go to"
                    f" {where[owner]} and {where[name]}: place what holds both as one model"
                )
                raise ValueError(message)
