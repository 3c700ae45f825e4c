"""The examples run as their READMEs say, and learn what they should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DIGITS = Path(__file__).parent.parent / "examples" / "digits"


@pytest.mark.parametrize("config", sorted(DIGITS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_digits_are_learned(config: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pparallel", "run", str(config), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    accuracies = [each["accuracy"] for each in results.values() if each is not None]
    assert len(accuracies) == 1  # that of rank 0
    assert accuracies[0] >= 0.95
