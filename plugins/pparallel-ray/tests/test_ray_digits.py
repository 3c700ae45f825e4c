"""The digits are learned by members that Ray has placed, by the example's program as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = Path(__file__).parents[3] / "examples" / "digits" / "ray.yaml"


def accuracy(*options: str) -> float:
    """Run the example from the shell, and return what rank 0 has found."""
    command = [sys.executable, "-m", "pparallel", "run", str(CONFIG), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [each for each in json.loads(done.stdout)["results"].values() if each is not None]
    assert len(found) == 1
    return float(found[0]["accuracy"])


@pytest.mark.costly
class TestDigits:
    """On each kind of cluster."""

    def test_on_a_running_cluster(self, unconnected: str) -> None:
        assert accuracy("--set", f"launcher.cluster.address={unconnected}") >= 0.95

    def test_on_a_cluster_of_its_own(self) -> None:
        assert accuracy("--set", "launcher.cluster.object_store_memory=100000000") >= 0.95
