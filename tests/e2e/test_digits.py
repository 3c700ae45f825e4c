"""The digits are learned by every reducer, by the example's program as it is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from joined_batch import Batch, check_alike, tensors, train_on_joined
from torch import Tensor, nn
from warm_interpreter import WarmInterpreter

import pparallel
from pparallel.interfaces.reducer import Counters
from pparallel.runtime.streams import Streams

if TYPE_CHECKING:
    from pparallel.builder import Runtime

PROGRAM = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
STEPS = 200  #: of each member that trains

REDUCERS: dict[str, dict[str, Any]] = {
    "grad_server": {"backend": "grad_server", "reduce_batch_size": 3},
    "model_server": {"backend": "model_server"},
    "diloco": {"backend": "diloco", "inner_steps": 100},
    "all_reduce": {"backend": "all_reduce"},
    "local": {"backend": "local"},
}


class Trained(NamedTuple):
    """What training came to: accuracy at rank 0, and the counters of all members."""

    accuracy: float
    counters: list[Counters]

    @property
    def sent_bytes(self) -> int:
        """What all members sent, together."""
        return sum(each.sent_bytes for each in self.counters)

    @property
    def reduced(self) -> int:
        """How many gradients were reduced."""
        return sum(each.reduced for each in self.counters)


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_train", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(rt: Runtime) -> tuple[dict[str, float] | None, Counters]:
    return example().main(rt, steps=STEPS), rt.reducer.counters()


def trained(members: int, reducer: dict[str, Any]) -> Trained:
    job = {"members": members, "seed": 7, "reducer": reducer}
    results = pparallel.launch(job, train)
    return Trained(results[0][0]["accuracy"], [counters for _, counters in results])


@pytest.fixture(scope="module")
def by_reducer() -> dict[str, Trained]:
    """Each reducer's training, made when it is first asked for."""
    return {}


def get(made: dict[str, Trained], name: str) -> Trained:
    if name not in made:
        made[name] = trained(1 if name == "local" else 4, REDUCERS[name])
    return made[name]


@pytest.mark.parametrize("name", REDUCERS)
def test_the_digits_are_learned(by_reducer: dict[str, Trained], name: str) -> None:
    result = get(by_reducer, name)
    assert result.accuracy >= 0.9  # 0.1 is chance; gradients come in no fixed order
    pushed = [each.pushed for each in result.counters]
    server = name == "grad_server"  # its first member feeds no batches
    assert pushed == [0 if server and not rank else STEPS for rank in range(len(pushed))]
    assert result.reduced == sum(pushed)
    assert {each[2:5] for each in result.counters} == {(0, 0, 0)}, "late, refused or lost"


def test_diloco_sends_a_fiftieth_of_what_a_gradient_server_does(
    by_reducer: dict[str, Trained],
) -> None:
    server, diloco = get(by_reducer, "grad_server"), get(by_reducer, "diloco")
    ratio = (server.sent_bytes / server.reduced) / (diloco.sent_bytes / diloco.reduced)
    assert ratio >= 50


# -- synchronous training is that on the joined batch ---------------------------------------------

SEED, BATCH, LR = 7, 64, 3e-3


def keeping_the_model(rt: Runtime, steps: int) -> list[Tensor]:
    """Train by the example's program as it is; return the parameters of its model."""
    program, made = example(), list[nn.Module]()
    network = program.network

    def kept(random: torch.Generator) -> nn.Module:
        made.append(network(random))
        return made[-1]

    program.network = kept  # type: ignore[attr-defined]
    program.main(rt, steps=steps)
    return tensors(made[0])


def trained_on_the_joined_batch(members: int, steps: int) -> Any:
    """Train in this process, on what all members draw."""
    program = example()
    (images, labels), _ = program.digits()
    draws = [Streams(SEED, "member", rank).torch for rank in range(members)]
    model, *_ = [program.network(each) for each in draws]
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, betas=(0.5, 0.999))

    def batch(draw: torch.Generator) -> Batch:
        chosen = torch.randint(len(images), (BATCH,), generator=draw)
        return images[chosen], labels[chosen]

    train_on_joined(model, optimizer, ([batch(each) for each in draws] for _ in range(steps)))
    return model


@pytest.mark.parametrize("overlap", [False, True], ids=["after", "during"])
def test_all_reduce_is_training_on_the_joined_batch(overlap: bool) -> None:
    reducer = {"backend": "all_reduce", "overlap": overlap, "bucket": "20 KB"}
    job = {"members": 4, "seed": SEED, "reducer": reducer}
    results = pparallel.launch(job, keeping_the_model, (100,))
    expected = tensors(trained_on_the_joined_batch(4, 100))
    check_alike(results, expected, rtol=1e-3, atol=1e-4)


#: ``torchrun --standalone --nproc-per-node=2 -m pparallel ...``, but that its ranks are forks:
#: each would import torch for seconds
TORCHRUN = """
import os, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from pparallel.cli import main

def rank():
    if os.environ["RANK"] != "0":
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        main()
    except SystemExit as end:
        assert not end.code

if __name__ == "__main__":
    where = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "digits"}
    elastic_launch(LaunchConfig(1, 1, 2, start_method="fork", **where), rank)()
"""


def test_torchrun_runs_the_config(warm_torch: WarmInterpreter, tmp_path: Path) -> None:
    """As its README says."""
    config = PROGRAM.with_name("allreduce.yaml")
    run = ["run", str(config), "--json", "--set", "members=2"]
    options = ["--set", "args={steps: 60}", "--set", "transport={backend: torch_rpc}"]
    done = warm_torch.execute(TORCHRUN, tmp_path, *run, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["results"]["member-0"]["accuracy"]
    program = example()
    _, held_out = program.digits()
    expected = program.accuracy(trained_on_the_joined_batch(2, 60), *held_out)
    assert found == pytest.approx(expected, abs=2.5 / len(held_out[1])), "more than two images"
