"""Each config of the examples is a job that learns what its README says.

The jobs run in this process, with fewer steps; ``test_digits.py`` has torchrun start one from the
shell. The members that are processes are forks of one fork server: each would import torch for
seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import preloads
import pytest

import pparallel

EXAMPLES = Path(__file__).parents[2] / "examples"
PRELOADED = json.dumps([*preloads.MEMBERS, "sklearn.datasets"])

#: the configs of the digits, and how many steps are enough; ``test_digits.py`` runs ``allreduce``
#: and a plugin's tests ``ray``
DIGITS = {
    "diloco": 200,
    "embedded": 150,
    "grad_server": 150,
    "model_server": 150,
    "processes": 150,
    "torch_rpc": 150,
    "zmq": 150,
}


def configs(example: str) -> list[str]:
    return sorted(each.stem for each in (EXAMPLES / example).glob("*.yaml"))


def results_of(config: str, *overrides: str) -> dict[str, Any]:
    """Run a job; return what the members returned, by name."""
    job = pparallel.load(EXAMPLES / f"{config}.yaml", overrides=overrides)
    if job.launcher is not None and job.launcher.backend == "process":
        job = pparallel.load(
            EXAMPLES / f"{config}.yaml", overrides=[*overrides, f"launcher.preload={PRELOADED}"]
        )
    return dict(zip(job.names, pparallel.launch(job), strict=True))


def test_each_config_is_run() -> None:
    assert {*DIGITS, "allreduce", "ray"} == {*configs("digits")}
    assert {each.name for each in EXAMPLES.iterdir() if each.is_dir()} == {
        "a3c",
        "digits",
        "moving",
        "placement",
        "preprocessing",
        "sync_batch_norm",
    }


@pytest.mark.parametrize("config", DIGITS)
def test_the_digits_are_learned(config: str) -> None:
    results = results_of(f"digits/{config}", f"args.steps={DIGITS[config]}")
    accuracies = [each["accuracy"] for each in results.values() if each is not None]
    assert len(accuracies) == 1  # that of rank 0
    assert accuracies[0] >= 0.9


def test_the_replicas_are_one_batch() -> None:
    assert configs("sync_batch_norm") == ["threads"]
    results = results_of("sync_batch_norm/threads")
    assert len(results) == 3
    assert all(0 <= each["largest_difference"] < 1e-5 for each in results.values())


def test_the_sounds_are_told_apart_whoever_prepares_them() -> None:
    found = {}
    for each in configs("preprocessing"):
        preload = [f"pool.preload={PRELOADED}"] if each == "processes" else []
        overrides = ["args={clips: 600, batch_size: 20}", *preload]
        found[each] = results_of(f"preprocessing/{each}", *overrides)["member-0"]
    assert {*found} == {"processes", "serial", "threads"}
    assert found["serial"]["accuracy"] >= 0.7  # one in seven is chance
    assert all(each == pytest.approx(found["serial"]) for each in found.values())


def test_the_agent_is_placed_and_learns() -> None:
    assert configs("placement") == ["exact", "greedy"]
    for each, steps in (("exact", 120), ("greedy", 1)):
        results = results_of(f"placement/{each}", f"args={{steps: {steps}}}")["member-0"]
        assert results["accuracy"] >= (0.95 if steps > 1 else 0)
        assert {*results["here"]} == {*results["two GPUs"]}
        assert {*results["two GPUs"].values()} >= {"cuda:0", "cuda:1"}  # neither has room for all


@pytest.mark.parametrize("config", ["threads", "processes"])
def test_an_actor_and_its_critic_learn_to_balance(config: str) -> None:
    assert configs("a3c") == ["processes", "threads"]
    results = results_of(f"a3c/{config}", "args={updates: 30}")
    tested = results.pop("actor-server")
    assert {*results.values()} == {None}
    assert tested["mean_return_before"] < 40
    assert tested["mean_return_after"] > 3 * tested["mean_return_before"]
