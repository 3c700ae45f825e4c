"""From what ``place`` is given to a problem in numbers, or a clear refusal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

from pparallel.errors import did_you_mean
from pparallel.interfaces.placer.device import Device
from pparallel.interfaces.placer.devices import resolved
from pparallel.interfaces.placer.distances import distances
from pparallel.interfaces.placer.naming import named
from pparallel.interfaces.placer.problem import Problem
from pparallel.models.sizes import ModelSizeEstimator

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pparallel.interfaces.placer.config import PlacerConfig

Key = str | int
#: How much two models exchange, by pairs: of names, of indices, or of either.
Amounts = (
    Mapping[tuple[str, str], float]
    | Mapping[tuple[int, int], float]
    | Mapping[tuple[str | int, str | int], float]
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A problem, and what the placement is to remember besides.

    Attributes:
        problem: what is to be solved.
        exchanges: the connections, by the models' names, each pair once.
        compute: how much each model computes, where *connections* said so.
        modules: the models that are no mere sizes.
    """

    problem: Problem
    exchanges: tuple[tuple[str, str, float], ...]
    compute: dict[str, float]
    modules: dict[str, nn.Module]


def state(
    models: Mapping[str, nn.Module | float] | Sequence[nn.Module | float],
    connections: Amounts,
    devices: Sequence[str | Device | torch.device] | None,
    config: PlacerConfig,
) -> Statement:
    """Return what :meth:`Placer.place` is asked; raises as it does."""
    known = named(models)
    if not known:
        message = "there are no models to place"
        raise ValueError(message)
    sizes = tuple(_size(*each) * config.model_size_multiplier for each in known.items())
    matrix = _matrix(tuple(known), connections)
    found = resolved(devices, config)
    problem = Problem(
        models=tuple(known),
        sizes_mb=sizes,
        devices=found,
        limits_mb=tuple((each.memory_mb or 0.0) * config.max_mem_ratio for each in found),
        connections=matrix,
        distances=distances(found, config),
        connection_weight=config.connection_weight,
        complexity_match_weight=config.complexity_match_weight,
    )
    modules = {name: each for name, each in known.items() if not isinstance(each, Real)}
    return Statement(
        problem,
        tuple(_exchanges(problem)),
        _compute(connections, tuple(known)),
        cast("dict[str, nn.Module]", modules),
    )


def _size(name: str, model: object) -> float:
    if not isinstance(model, bool) and isinstance(model, Real):
        size = float(model)
        if not (math.isfinite(size) and size >= 0):
            message = f"model {name!r} has size {size:g} MB; give a finite number from 0"
            raise ValueError(message)
        return size
    if not callable(getattr(model, "parameters", None)):
        message = (
            f"model {name!r} is {model!r}, of type {type(model).__name__}; give a torch module, or"
            " its size in MB as a number"
        )
        raise TypeError(message)
    return ModelSizeEstimator(cast("nn.Module", model), size_multiplier=1).estimate_size()


def _matrix(
    names: tuple[str, ...], connections: Mapping[Any, float]
) -> tuple[tuple[float, ...], ...]:
    index = {name: at for at, name in enumerate(names)}
    matrix = [[0.0] * len(names) for _ in names]
    for pair, given in connections.items():
        if not (isinstance(pair, tuple) and len(pair) == 2):
            message = f"connection {pair!r} is no pair of models; write (one, other): amount"
            raise ValueError(message)
        amount = float(given)
        if not (math.isfinite(amount) and amount >= 0):
            message = f"connection {pair!r} has amount {amount:g}; give a finite number from 0"
            raise ValueError(message)
        one, other = (_index(each, pair, index) for each in pair)
        if one == other:
            message = f"connection {pair!r} joins model {names[one]!r} with itself; leave it out"
            raise ValueError(message)
        matrix[one][other] += amount
    return tuple(map(tuple, matrix))


def _index(name: Key, pair: tuple[Key, Key], index: Mapping[str, int]) -> int:
    """Return the number of the model that a connection calls *name*."""
    if isinstance(name, int) and not isinstance(name, bool) and str(name) not in index:
        if 0 <= name < len(index):  # models that have names may be called by their index, too
            return name
    elif str(name) in index:
        return index[str(name)]
    known = ", ".join(index)
    message = (
        f"connection {pair!r} names model {name!r}, which is not there; there are: {known}."
        f"{did_you_mean(str(name), index)}"
    )
    raise ValueError(message)


def _exchanges(problem: Problem) -> Iterator[tuple[str, str, float]]:
    matrix, names = problem.connections, problem.models
    for one, row in enumerate(matrix):
        for other in range(one + 1, len(names)):
            if much := row[other] + matrix[other][one]:
                yield names[one], names[other], much


def _compute(connections: object, names: tuple[str, ...]) -> dict[str, float]:
    """Return what was measured of the models' computing, if the connections were measured."""
    measured = getattr(connections, "compute", None)
    if not isinstance(measured, Mapping):
        return {}
    return {str(name): float(much) for name, much in measured.items() if str(name) in names}
