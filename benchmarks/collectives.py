"""The local collective's own operations beside the default algorithms over its messages.

``python benchmarks/collectives.py [--json] [--rounds N] [--members N]``: microseconds until all
members have done an operation, medians over the rounds, interleaved in one run, and how many times
as long ours takes. A barrier of its own kind ends each, and is in the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from types import MethodType

import torch

import pparallel
from pparallel.interfaces.collective import Collective

SIZES = (10, 10_000, 1_000_000, 10_000_000)


def operations(group: Collective, tensor: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is measured, on tensors made before."""
    everyone = [torch.zeros_like(tensor) for _ in range(group.size())]
    return {
        "all_reduce": lambda: group.all_reduce(tensor),
        "broadcast": lambda: group.broadcast(tensor, 0),
        "all_gather": lambda: group.all_gather(everyone, tensor),
        "barrier": group.barrier,
    }


def measure(rt: pparallel.Runtime, rounds: int) -> list[dict[str, str | float]]:
    """Return one row per operation and size."""
    defaults: Collective = rt["defaults"]
    defaults.operation = MethodType(Collective.operation, defaults)  # type: ignore[method-assign]
    rows: list[dict[str, str | float]] = []
    for size in SIZES:
        tensor = torch.zeros(size)
        kinds = {"ours": rt.collective, "defaults": defaults}
        measures = {who: operations(group, tensor) for who, group in kinds.items()}
        for name in measures["ours"]:
            times: dict[str, list[float]] = {who: [] for who in kinds}
            for turn in range(rounds + 1):
                for who, group in kinds.items():
                    group.barrier()
                    began = perf_counter()
                    measures[who][name]()
                    group.barrier()
                    took = perf_counter() - began
                    times[who] += [took] if turn else []  # the first round warms up
            ours, peer = (statistics.median(times[who]) * 1e6 for who in kinds)
            row = {"ours_us": ours, "defaults_us": peer, "ratio": ours / peer}
            rows.append({"operation": name, "floats": size, **row})
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--members", type=int, default=4)
    options = parser.parse_args()
    defaults = {"interface": "collective", "backend": "local"}
    config = {"members": options.members, "extra": {"defaults": defaults}}
    rows = pparallel.launch(config, measure, [options.rounds])[0]
    sys.stdout.write(json.dumps(rows, indent=2) if options.json else _table(rows))
    sys.stdout.write("\n")


def _table(rows: list[dict[str, str | float]]) -> str:
    titles = list(rows[0])
    lines = [titles, ["---"] * len(titles)]
    lines += [[_shown(row[title]) for title in titles] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: str | float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
