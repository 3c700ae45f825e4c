"""The digits are learned by every reducer, by the example's program as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import pparallel
from pparallel.interfaces.reducer import Counters

if TYPE_CHECKING:
    from pparallel.builder import Runtime

PROGRAM = Path(__file__).parent.parent / "examples" / "digits" / "train.py"
STEPS = 400  #: of each member that trains

REDUCERS: dict[str, dict[str, Any]] = {
    "grad_server": {"backend": "grad_server", "reduce_batch_size": 3},
    "model_server": {"backend": "model_server"},
    "diloco": {"backend": "diloco", "inner_steps": 100},
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
    assert result.accuracy >= 0.95
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
