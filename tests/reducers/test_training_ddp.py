"""Training with ``all_reduce`` over gloo is training in DistributedDataParallel."""

from __future__ import annotations

import preloads
import pytest
import torch
from training_ddp import train_both_ways

import pparallel
from pparallel.testing.training.case import Case
from pparallel.testing.training.cases import every
from pparallel.testing.training.outcome import Outcome
from pparallel_process import ProcessLauncherConfig
from pparallel_reducers import AllReduceReducerConfig
from pparallel_torch import GlooCollectiveConfig

CASES = (
    "sgd",
    "momentum",
    "adam",
    "adam_w",
    "parameter_groups",
    "clip_by_norm",
    "moving_average",
    "accumulation",
    "step_schedule",
    "tied_weights",
    "frozen",
    "float16",
    "bfloat16",
    "float64",
    "large_float16",
    "channels_last",
    "batch_norm",
    "infinite_mask",
    "autocast",
)
Outcomes = list[dict[str, tuple[Outcome, Outcome]]]


def _name(case: Case) -> str:
    return case.name


@pytest.fixture(scope="module", params=[False, True], ids=["straight", "overlap"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What came of all cases, in each of two members: one job, as processes take long to start."""
    config = pparallel.RuntimeConfig(
        members=2,
        launcher=ProcessLauncherConfig(preload=preloads.MEMBERS),
        reducer=AllReduceReducerConfig(collective=GlooCollectiveConfig(), overlap=request.param),
    )
    meeting = tmp_path_factory.mktemp("ddp") / "meeting"
    found: Outcomes = pparallel.launch(config, train_both_ways, (CASES, meeting))
    return found


@pytest.mark.parametrize("case", [each for each in every() if each.name in CASES], ids=_name)
def test_it_is_what_ddp_does(case: Case, outcomes: Outcomes) -> None:
    rtol, atol = case.tolerance or (None, None)
    for found in outcomes:
        own, ddp = found[case.name]
        assert not own.refusals
        torch.testing.assert_close(own.parameters, ddp.parameters, rtol=rtol, atol=atol)
        torch.testing.assert_close(own.losses, ddp.losses, rtol=rtol, atol=atol)
