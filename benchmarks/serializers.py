"""How long the serializers take, against the picklers they compete with, interleaved.

Prints for each object and peer the median microseconds of one dumps and one loads, and how many
times the peer takes of what ``dill`` (ours) takes. ``--json`` prints the same as one object.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import os.path
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from pparallel_serializers import DillSerializerConfig, PickleSerializerConfig
from pparallel_serializers.dill import DillSerializer
from pparallel_serializers.pickle import PickleSerializer

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
Row = dict[str, float | str]

OURS = "pparallel dill"
MEGABYTES = 64


def codecs() -> dict[str, Codec]:
    """Return dumps and loads of each contestant that is installed."""
    ours = DillSerializer(DillSerializerConfig())
    stock = PickleSerializer(PickleSerializerConfig())
    found: dict[str, Codec] = {
        OURS: (ours.dumps, ours.loads),
        "pparallel pickle": (stock.dumps, stock.loads),
        "pickle": (functools.partial(pickle.dumps, protocol=5), pickle.loads),
    }
    import dill

    found["dill"] = (dill.dumps, dill.loads)
    if importlib.util.find_spec("cloudpickle"):
        cloudpickle = importlib.import_module("cloudpickle")
        found["cloudpickle"] = (cloudpickle.dumps, pickle.loads)
    return found


def subjects(megabytes: int) -> dict[str, tuple[Any, int]]:
    """Return what is serialised, and how often in each round."""
    import torch

    weights = {f"layer.{i}": torch.ones(1000) for i in range(60)}
    return {
        "lambda": (lambda x: x + 1, 200),
        "named function": (os.path.join, 2000),
        "small dict": ({"a": 1, "b": [1.5, "two"], "c": None}, 2000),
        "60 small tensors": (weights, 10),
        f"tensor of {megabytes} MB": (torch.ones(megabytes << 18), 1),
    }


def measure(obj: Any, count: int, rounds: int, found: dict[str, Codec]) -> dict[str, Row]:
    """Return the median microseconds of each contestant that can serialise *obj*."""
    ready: dict[str, Any] = {}
    for name, (dumps, _) in found.items():
        try:
            ready[name] = dumps(obj)
        except Exception as error:  # noqa: BLE001 - that a peer cannot is a result
            print(f"{name} cannot: {type(error).__name__}", file=sys.stderr)  # noqa: T201
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ready}
    for _ in range(rounds):
        for name, data in ready.items():
            dumps, loads = found[name]
            times[name][0].append(timed(dumps, obj, count))
            times[name][1].append(timed(loads, owned(data), count))
    return {
        name: {"dumps_us": statistics.median(out), "loads_us": statistics.median(back)}
        for name, (out, back) in times.items()
    }


def owned(data: Any) -> Any:
    """Return *data* as a transport leaves it with the receiver."""
    return [bytearray(each) for each in data] if isinstance(data, list) else data


def timed(function: Callable[[Any], Any], argument: Any, count: int) -> float:
    """Return the microseconds of one call."""
    start = time.perf_counter()
    for _ in range(count):
        function(argument)
    return (time.perf_counter() - start) / count * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    given = parser.parse_args()
    found = codecs()
    results: dict[str, dict[str, Row]] = {}
    for what, (obj, count) in subjects(given.megabytes).items():
        rows = results[what] = measure(obj, count, given.rounds, found)
        for row in rows.values():
            for step in ("dumps", "loads"):
                row[f"{step}_ratio"] = float(row[f"{step}_us"]) / float(rows[OURS][f"{step}_us"])
    print(json.dumps(results) if given.json else table(results))  # noqa: T201


def table(results: dict[str, dict[str, Row]]) -> str:
    """Return *results* as lines to read."""
    lines = [f"{'':22}{'':18}{'dumps us':>12}{'ratio':>9}{'loads us':>12}{'ratio':>9}"]
    for what, rows in results.items():
        for name, row in rows.items():
            dumps = f"{row['dumps_us']:12.1f}{row['dumps_ratio']:9.2f}"
            lines.append(
                f"{what:22}{name:18}{dumps}{row['loads_us']:12.1f}{row['loads_ratio']:9.2f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
