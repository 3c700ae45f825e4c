"""The examples run as their READMEs say, and learn what they should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def configs(example: str) -> list[Path]:
    """Return the configs of an example, of which there is at least one."""
    found = sorted((EXAMPLES / example).glob("*.yaml"))
    assert found
    return found


def results_of(config: Path) -> dict[str, Any]:
    """Run a config from the shell and return what the members returned, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "pparallel", "run", str(config), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)["results"]
    return results


@pytest.mark.parametrize("config", configs("digits"), ids=lambda path: path.stem)
def test_the_digits_are_learned(config: Path) -> None:
    results = results_of(config)
    accuracies = [each["accuracy"] for each in results.values() if each is not None]
    assert len(accuracies) == 1  # that of rank 0
    assert accuracies[0] >= 0.95


@pytest.mark.parametrize("config", configs("sync_batch_norm"), ids=lambda path: path.stem)
def test_the_replicas_are_one_batch(config: Path) -> None:
    results = results_of(config)
    assert len(results) == 3
    assert all(0 <= each["largest_difference"] < 1e-5 for each in results.values())


def test_the_sounds_are_told_apart_whoever_prepares_them() -> None:
    results = [results_of(each)["member-0"] for each in configs("preprocessing")]
    assert len(results) == 3
    assert results[0]["accuracy"] >= 0.9
    assert all(each == pytest.approx(results[0]) for each in results)
