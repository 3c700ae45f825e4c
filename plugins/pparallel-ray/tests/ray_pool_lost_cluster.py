"""A pool whose cluster is killed: writes what its tasks end with, and that it closed.

Into the file that is its argument: Ray itself prints the logs of what was killed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import psutil

from pparallel import build
from pparallel.errors import PparallelError
from pparallel.testing.gate import Gate
from pparallel_ray import RayPoolConfig
from pparallel_ray.cluster import RayConnection


def main(found: Path) -> None:
    config = RayPoolConfig(size=1, cluster=RayConnection(num_cpus=2), start_timeout=5.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        found.open("w") as written,
        build(config) as pool,
    ):
        assert pool.apply(abs, (-1,)) == 1, "there is a worker, however long that has taken"
        gate = Gate(Path(folder))
        running = pool.submit(gate.pass_through)
        gate.arrived()
        for each in psutil.Process(os.getpid()).children(recursive=True):
            if each.name() == "raylet":
                each.kill()
        for handle in (running, pool.submit(abs, -1)):
            error = handle.exception(60)
            assert isinstance(error, PparallelError), error
            written.write(f"{type(error).__name__}\n")
        gate.close()
        pool.terminate()
    with found.open("a") as written:
        written.write("closed\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
