from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from pparallel.errors import ConfigError
from pparallel.interfaces.placer import Device, Placement, PlacerConfig

DEVICES = (Device("cuda:0", 1000.0, 1.0), Device("cuda:1", 1000.0, 2.0), Device("cpu", None, 0.0))
PLACEMENT = Placement(
    models=("actor", "critic", "tokenizer"),
    assignment=("cuda:0", "cuda:0", "cpu"),
    sizes_mb=(10.0, 20.5, 3.0),
    devices=DEVICES,
    cost=0.75,
    terms={"connection": 0.5, "complexity_match": 0.25},
    bound=0.6,
    connections=(("actor", "critic", 60.0), ("critic", "tokenizer", 40.0)),
    compute={"actor": 3.0, "critic": 4.0, "tokenizer": 3.0},
)


def test_a_model_that_is_there_twice_is_refused() -> None:
    models = ("actor", "critic", "actor")
    with pytest.raises(ValueError, match="model 'actor' is there twice"):
        Placement.from_dict({**PLACEMENT.to_dict(), "models": models})


def test_explain_is_a_table_of_devices_traffic_and_terms() -> None:
    assert PLACEMENT.explain().splitlines() == [
        "device  models         MB    of MB   size  power  compute",
        "cuda:0  actor, critic  30.5  1000.0  91%   33%    70%",
        "cuda:1  -              0.0   1000.0  0%    67%    0%",
        "cpu     tokenizer      3.0   ?       9%    0%     30%",
        "exchanged       amount  share",
        "within devices  60      60%",
        "cuda:0 - cpu    40      40%",
        "cost 0.75 = 0.5 (connection) + 0.25 (complexity_match)",
        "no placement costs less than 0.6 (gap 20.00%)",
    ]


def test_explain_tells_what_is_known() -> None:
    less: dict[str, Any] = {"connections": (), "compute": {}, "bound": None}
    less.update(devices=(Device("cpu"),), assignment=("cpu",) * 3)
    bare = dataclasses.replace(PLACEMENT, **less)
    assert bare.explain().splitlines() == [
        "device  models                    MB    of MB  size  power",
        "cpu     actor, critic, tokenizer  33.5  ?      100%  ?",
        "cost 0.75 = 0.5 (connection) + 0.25 (complexity_match)",
    ]


def test_explain_without_terms_or_bound() -> None:
    bare = dataclasses.replace(PLACEMENT, terms={}, bound=None)
    assert bare.explain().splitlines()[-1] == "cost 0.75"


@pytest.mark.parametrize(
    ("cost", "bound", "gap"),
    [
        (0.75, 0.6, 0.2),
        (0.75, 0.75, 0.0),
        (0.75, 0.7500001, 0.0),
        (0.0, 0.0, 0.0),
        (0.75, 0.0, 1.0),
        (0.75, None, None),
    ],
)
def test_gap(cost: float, bound: float | None, gap: float | None) -> None:
    found = dataclasses.replace(PLACEMENT, cost=cost, bound=bound).gap
    assert found == (None if gap is None else pytest.approx(gap))


@pytest.mark.parametrize("bound", [0.6, None])
def test_it_survives_json(bound: float | None) -> None:
    placement = dataclasses.replace(PLACEMENT, bound=bound)
    data = json.loads(json.dumps(placement.to_dict()))
    assert Placement.from_dict(data) == placement
    assert data["assignment"] == ["cuda:0", "cuda:0", "cpu"]
    assert data["connections"][0] == ["actor", "critic", 60.0]
    assert data["devices"][2] == {"name": "cpu", "memory_mb": None, "power": 0.0}


def test_it_survives_pickle() -> None:
    assert pickle.loads(pickle.dumps(PLACEMENT)) == PLACEMENT


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="3 models, 1 devices assigned and 3 sizes"):
        dataclasses.replace(PLACEMENT, assignment=("cpu",))
    with pytest.raises(ValueError, match="assigned to cuda:7, not among the devices"):
        dataclasses.replace(PLACEMENT, assignment=("cpu", "cpu", "cuda:7"))
    with pytest.raises(ValueError, match="world exchange or compute, not among the models"):
        dataclasses.replace(PLACEMENT, connections=(("actor", "world", 1.0),))
    with pytest.raises(KeyError, match="models"):
        Placement.from_dict({})


def test_devices_are_frozen_records() -> None:
    assert Device("cpu").is_cpu
    assert not Device("cuda:0").is_cpu
    assert Device("cpu") == Device("cpu", None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Device("cpu").power = 2.0  # type: ignore[misc]


def test_the_options_have_the_seeds_defaults() -> None:
    assert PlacerConfig(backend="x").model_dump() == {
        "backend": "x",
        "model_size_multiplier": 2,
        "max_mem_ratio": 0.5,
        "cpu_weight": 0,
        "connection_weight": 2,
        "complexity_match_weight": 1,
        "gpu_gpu_distance": 1,
        "cpu_gpu_distance": 10,
        "distances": {},
        "measure_distances": False,
    }


@pytest.mark.parametrize(
    ("option", "value"), [("max_mem_ratio", 1.5), ("cpu_weight", -1), ("model_size_multiplier", 0)]
)
def test_options_out_of_range(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=option):
        PlacerConfig.model_validate({"backend": "x", option: value})


def test_neither_placements_nor_collectives_import_torch() -> None:
    code = (
        "import sys, pparallel.interfaces.placer, pparallel.interfaces.collective;"
        "from pparallel import ModelSizeEstimator, measure_connections;"
        "sys.exit(bool({'torch', 'numpy', 'matplotlib', 'psutil'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
