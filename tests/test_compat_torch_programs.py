"""The programs of ``examples/moving`` for torch_xla and torch.multiprocessing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MOVING = Path(__file__).resolve().parent.parent / "examples" / "moving"


def printed(program: str, *args: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, MOVING / program, *args],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.costly
@pytest.mark.parametrize("program", ["before.py", "after.py"])
def test_hogwild(program: str) -> None:
    assert printed(f"torch_multiprocessing/{program}") == (
        "process 0: loss 0.0000\nprocess 1: loss 0.0000\nlargest error of 8 weights: 0.0000\n"
    )


def test_a_wrapped_model(tmp_path: Path) -> None:
    """Nothing but ``after.py``: torch_xla is not here."""
    weights = "[2.0, -3.0, 1.0]"
    assert printed("torch_xla/after.py", tmp_path) == (
        f"process 0: {weights}\nprocess 1: {weights}\nfetched 1 time(s)\n"
    )
