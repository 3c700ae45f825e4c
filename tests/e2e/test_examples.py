"""The examples run as their READMEs say, and learn what they should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def configs(example: str) -> list[Path]:
    """Return the configs of an example, of which there is at least one."""
    found = sorted((EXAMPLES / example).glob("*.yaml"))
    assert found
    return found


def started(config: Path) -> subprocess.Popen[str]:
    """Run a config from the shell."""
    command = [sys.executable, "-m", "pparallel", "run", str(config), "--json"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def results_of(running: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what the members returned, by name."""
    with running:
        printed, told = running.communicate()
    assert running.returncode == 0, told
    results: dict[str, Any] = json.loads(printed)["results"]
    return results


@pytest.mark.costly
@pytest.mark.parametrize("config", configs("digits"), ids=lambda path: path.stem)
def test_the_digits_are_learned(config: Path) -> None:
    results = results_of(started(config))
    accuracies = [each["accuracy"] for each in results.values() if each is not None]
    assert len(accuracies) == 1  # that of rank 0
    assert accuracies[0] >= 0.95


@pytest.mark.parametrize("config", configs("sync_batch_norm"), ids=lambda path: path.stem)
def test_the_replicas_are_one_batch(config: Path) -> None:
    results = results_of(started(config))
    assert len(results) == 3
    assert all(0 <= each["largest_difference"] < 1e-5 for each in results.values())


def test_the_sounds_are_told_apart_whoever_prepares_them() -> None:
    at_work = [started(each) for each in configs("preprocessing")]
    results = [results_of(each)["member-0"] for each in at_work]
    assert len(results) == 3
    assert results[0]["accuracy"] >= 0.9
    assert all(each == pytest.approx(results[0]) for each in results)


@pytest.mark.parametrize("config", configs("placement"), ids=lambda path: path.stem)
def test_the_agent_is_placed_and_learns(config: Path) -> None:
    results = results_of(started(config))["member-0"]
    assert results["accuracy"] >= 0.95
    assert set(results["here"]) == set(results["two GPUs"])
    assert set(results["two GPUs"].values()) >= {"cuda:0", "cuda:1"}  # neither has room for all
