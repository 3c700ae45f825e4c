"""Process pools whose workers die while nothing is left to start others with."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import pparallel
from pparallel.testing.anomalies.faults import few_descriptors
from pparallel.testing.patience import PATIENCE, until


@pytest.mark.parametrize("backend", ["process", "p2p"])
def test_pool_without_descriptors_starts_workers_once_it_has_some(backend: str) -> None:
    with pparallel.build({"pool": {"backend": backend, "size": 2}}) as rt:
        pids = {rt.pool.apply(os.getpid) for _ in range(20)}
        with few_descriptors(os.getpid(), 0):
            for each in pids:
                os.kill(each, signal.SIGKILL)
            # To ask psutil would take a descriptor.
            until(lambda: not any(Path(f"/proc/{each}").exists() for each in pids), "they live")
            result = rt.pool.apply_async(os.getpid)
            result.wait(0.5)
        try:
            pid = result.get(PATIENCE)
        except pparallel.errors.WorkerLostError:  # it was given to a worker that had died
            pid = rt.pool.apply_async(os.getpid).get(PATIENCE)
        assert pid not in pids
