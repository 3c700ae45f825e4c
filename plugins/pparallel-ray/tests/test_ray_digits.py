"""The digits are learned by members that Ray has placed, by the example's program as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CONFIG = Path(__file__).parents[3] / "examples" / "digits" / "ray.yaml"


def test_on_a_running_cluster(unconnected: str) -> None:
    command = [sys.executable, "-m", "pparallel", "run", str(CONFIG), "--json"]
    fewer = ("args.steps=100", "members=[ps, worker-0]", "reducer.reduce_batch_size=1")
    for option in (f"launcher.cluster.address={unconnected}", *fewer):
        command += ["--set", option]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [each for each in json.loads(done.stdout)["results"].values() if each is not None]
    assert len(found) == 1
    assert found[0]["accuracy"] >= 0.85
