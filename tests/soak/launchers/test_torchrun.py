"""A program that torchrun itself starts, whose ranks are killed and start again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torchrun_programs as programs

from pparallel.runtime.processes import child_environment
from pparallel.testing.patience import PATIENCE

HELPERS = Path(__file__).resolve().parents[2] / "helpers"


def test_a_program_that_torchrun_starts(tmp_path: Path) -> None:
    run = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    logs = ["--log-dir", str(tmp_path / "logs")]
    program = [str(HELPERS / "torchrun_programs.py"), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", *run, *logs, *program],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"done.{rank}").read_text()) for rank in range(2)]
    names = ["member-0", "member-1"]
    trained = [[names[rank], rank, names, 1, 3, programs.STEPS] for rank in range(2)]
    called = [
        ["member-0 calls member-1", 0, 2, 1],
        ["member-1 calls member-0", 1, 2, 1],
    ]
    assert told == [[*each] for each in zip(trained, called, strict=True)]
