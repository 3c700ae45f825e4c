"""A gradient server learns the digits from compressed gradients, whoever pushes first."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pparallel
from pparallel.interfaces.reducer import Counters
from pparallel_reducers import GradServerReducerConfig

if TYPE_CHECKING:
    from pparallel.builder import Runtime

ENTRIES = 64 * 128 + 128 + 128 * 10 + 10  #: of the network
STEPS = 600
#: bytes of one gradient, by compression
BYTES: dict[str, tuple[dict[str, Any], int]] = {
    "bf16": ({"kind": "bf16"}, ENTRIES * 2),
    "topk": ({"kind": "topk", "ratio": 0.05}, round(0.05 * ENTRIES) * 8),
    "powersgd": (
        {"kind": "powersgd", "rank": 2},
        4 * (2 * (64 + 128) + 128 + 2 * (128 + 10) + 10),
    ),
}


def digits() -> ModuleType:
    path = Path(__file__).parents[3] / "examples" / "digits" / "train.py"
    spec = importlib.util.spec_from_file_location("digits_train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def learn(rt: Runtime) -> tuple[float | None, Counters]:
    result = digits().main(rt, steps=STEPS)
    return None if result is None else result["accuracy"], rt.reducer.counters()


def test_a_grad_server_learns_the_digits_from_less(rounds: Any) -> None:
    for random in rounds:
        compression, each = BYTES[random.choice(sorted(BYTES))]
        reducer = GradServerReducerConfig.model_validate(
            {"compression": compression, "reduce_batch_size": 2}
        )
        seed = random.randrange(1000)
        config = pparallel.RuntimeConfig(members=["ps", "a", "b"], reducer=reducer, seed=seed)
        results = pparallel.launch(config, learn)
        assert results[0][0] >= 0.95
        assert [counters.pushed for _, counters in results] == [0, STEPS, STEPS]
        assert [counters.sent_bytes for _, counters in results[1:]] == [each * STEPS] * 2
