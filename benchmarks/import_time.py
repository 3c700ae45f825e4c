"""How long ``import pparallel`` takes, against pydantic and a bare interpreter.

Each round starts one interpreter for each case, in turn, so that whatever else the machine does
falls on all of them alike. Run it as ``python benchmarks/import_time.py [--rounds 15] [--json]``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

CASES = {
    "bare": "pass",
    "pydantic": "import pydantic; pydantic.BaseModel",
    "pparallel": "import pparallel",
    "pparallel.build": "import pparallel; pparallel.build",
    "pparallel --help": "import sys; sys.argv = ['pparallel', '--help']; "
    "from pparallel.cli import main; main()",
}


def seconds(code: str) -> float:
    """Return how long a fresh interpreter takes to run *code*."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return each case's median in seconds, and its ratio to pydantic's."""
    taken: dict[str, list[float]] = {case: [] for case in CASES}
    for _ in range(rounds):
        for case, code in CASES.items():
            taken[case].append(seconds(code))
    medians = {case: statistics.median(each) for case, each in taken.items()}
    return {
        case: {"seconds": round(median, 4), "to_pydantic": round(median / medians["pydantic"], 3)}
        for case, median in medians.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for case, each in found.items():
        sys.stdout.write(f"{case:17} {each['seconds']:7.3f} s  x{each['to_pydantic']:.2f}\n")


if __name__ == "__main__":
    main()
