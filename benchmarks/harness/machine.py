"""What the figures were taken on, and how busy it was: machines are shared, and drift."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from statistics import quantiles
from time import perf_counter

_ECHO = "import os\nwhile byte := os.read(0, 1): os.write(1, byte)"
_NAMED = ("pparallel", "torch", "numpy", "pyzmq", "redis", "loky", "joblib", "dill", "cloudpickle")


def machine() -> dict[str, object]:
    """Describe the machine and the software."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version for name in _NAMED if (version := _version(name))},
    }


def state(round_trips: int) -> dict[str, object]:
    """Return how busy the machine is: its load, and what a wake-up costs."""
    cores = sorted(os.sched_getaffinity(0))
    ends = {"one": (cores[0], cores[0]), "apart": (cores[0], cores[-1])}
    return {
        "load": [round(each, 2) for each in os.getloadavg()],
        "pipe": {how: _ping_pong(*each, round_trips) for how, each in ends.items()},
    }


def line(found: dict[str, object]) -> str:
    """Return a state as one line to read."""
    pipes = [
        f"{how} {1e6 * each['p50']:.1f} us (p99 {1e6 * each['p99']:.0f})"
        for how, each in found["pipe"].items()  # type: ignore[attr-defined]
    ]
    return f"load {found['load']}; round trip through a pipe: {', '.join(pipes)}"


def _ping_pong(here: int, there: int, round_trips: int) -> dict[str, float]:
    """Return the seconds of a byte's way to another process and back."""
    before = os.sched_getaffinity(0)
    command = [sys.executable, "-I", "-S", "-c", _ECHO]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        out, back, taken = child.stdin.fileno(), child.stdout.fileno(), []
        os.sched_setaffinity(child.pid, {there})
        os.sched_setaffinity(0, {here})
        for _ in range(round_trips + 20):
            start = perf_counter()
            os.write(out, b"x")
            os.read(back, 1)
            taken.append(perf_counter() - start)
        os.sched_setaffinity(0, before)
        child.stdin.close()
    cuts = quantiles(taken[20:], n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
