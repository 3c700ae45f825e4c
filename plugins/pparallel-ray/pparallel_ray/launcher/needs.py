"""What ranks ask for, and whether a cluster has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from pparallel.errors import ConfigError, did_you_mean
from pparallel.interfaces.launcher import RankSpec

Needs = dict[str, float]  #: amounts by Ray's names of resources

_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
_AMOUNT: TypeAdapter[Any] = TypeAdapter(float)
_BYTES: TypeAdapter[Any] = TypeAdapter(ByteSize)


def needs_of(spec: RankSpec, num_cpus: float) -> Needs:
    """Return what a rank asks for, without what it needs none of.

    Args:
        spec: the rank.
        num_cpus: CPUs for one that does not say how many.

    Raises:
        ConfigError: an amount is none.
    """
    asked: dict[str, Any] = {"num_cpus": num_cpus}
    for name, amount in spec.resources.items():
        if name == "resources" and isinstance(amount, Mapping):
            asked.update(amount)
        else:
            asked[name] = amount
    found = {_NAMES.get(each, each): _amount(spec, each, asked[each]) for each in asked}
    return {name: amount for name, amount in found.items() if amount}


def _amount(spec: RankSpec, name: str, given: object) -> float:
    try:
        amount = float((_BYTES if name == "memory" else _AMOUNT).validate_python(given))
        if 0 <= amount < float("inf") and not isinstance(given, bool):
            return amount
    except ValidationError:
        pass
    unit = "bytes, as a number or text such as '2GB'" if name == "memory" else "a number from 0 up"
    message = f"{_who(spec)} asks for {name}: {given!r}, and what it may ask for is {unit}"
    raise ConfigError(message, path=f"members.{spec.rank}.resources.{name}")


def _who(spec: RankSpec) -> str:
    return f"member {spec.name!r}" if spec.name else f"rank {spec.rank}"


def total(needs: Sequence[Mapping[str, float]]) -> Needs:
    """Return the sum of *needs*."""
    found: Counter[str] = Counter()
    for each in needs:
        found.update(each)
    return dict(found)


def obstacle(
    ranks: Sequence[RankSpec],
    needs: Sequence[Needs],
    machines: Sequence[Mapping[str, float]],
    placement: str,
) -> str:
    """Return why *machines* can never hold all ranks at once, whoever else uses them; else ''."""
    whole = total(machines)
    for spec, each in zip(ranks, needs, strict=True):
        if unknown := sorted(set(each) - set(whole)):
            hint = did_you_mean(unknown[0], whole)
            return f"{_who(spec)} asks for {unknown[0]!r}, which no machine has.{hint}"
        if not any(_fits(each, machine) for machine in machines):
            return f"{_who(spec)} asks for {words(each)}, more than any one machine has"
    everything = total(needs)
    if short := [name for name in everything if everything[name] > whole[name]]:
        return f"the {len(ranks)} members ask for {words(everything)}: too much {short[0]}"
    if placement == "strict_pack" and not any(_fits(everything, each) for each in machines):
        return f"no machine has room for all {len(ranks)}, which ask for {words(everything)}"
    if placement == "strict_spread" and sum(map(bool, needs)) > len(machines):
        return f"{len(ranks)} members ask for a machine each, and of those there is {len(machines)}"
    return ""


def _fits(needs: Mapping[str, float], machine: Mapping[str, float]) -> bool:
    return all(machine.get(name, 0) >= amount for name, amount in needs.items())


def words(needs: Mapping[str, float]) -> str:
    """Return amounts as text, without those of resources that Ray adds for itself."""
    shown = [_shown(name, needs[name]) for name in sorted(needs) if not _is_rays(name)]
    return ", ".join(shown) or "nothing"


def _is_rays(name: str) -> bool:
    return name == "object_store_memory" or name.startswith("node:") or "_group_" in name


def _shown(name: str, amount: float) -> str:
    return f"{amount / 2**20:,.0f} MB of memory" if name == "memory" else f"{amount:g} {name}"
