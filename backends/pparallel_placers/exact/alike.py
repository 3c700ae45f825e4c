"""What may change places without a difference: models alike, and devices alike."""

from __future__ import annotations

from collections.abc import Callable

from pparallel.interfaces.placer import Problem


def models_alike(problem: Problem) -> list[list[int]]:
    """Return the models in classes: two of one class may swap, and nothing costs or needs more."""
    traffic, sizes = problem.traffic, problem.sizes_mb

    def alike(one: int, other: int) -> bool:
        return sizes[one] == sizes[other] and all(
            traffic[one][each] == traffic[other][each]
            for each in range(len(sizes))
            if each not in (one, other)
        )

    return _classes(len(sizes), alike)


def devices_alike(problem: Problem) -> list[list[int]]:
    """Return the devices in classes: two of one class may swap, and nothing costs or fits less."""
    spans, power, limits = problem.spans, problem.power_shares, problem.limits_mb

    def alike(one: int, other: int) -> bool:
        return (power[one], limits[one]) == (power[other], limits[other]) and all(
            spans[one][each] == spans[other][each]
            for each in range(len(power))
            if each not in (one, other)
        )

    return _classes(len(power), alike)


def _classes(count: int, alike: Callable[[int, int], bool]) -> list[list[int]]:
    """Divide what is numbered; *alike* has to be an equivalence."""
    found: list[list[int]] = []
    for each in range(count):
        for members in found:
            if alike(members[0], each):
                members.append(each)
                break
        else:
            found.append([each])
    return found
