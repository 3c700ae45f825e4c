"""The N-th call of each kind fails in each operation: what the anomaly tests must find."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from thinning import FULL

from pparallel.testing.anomalies import Fault, Report, Scenario, built_in, run_scenario, table
from pparallel.testing.anomalies.faults import KINDS

SHARE = 1 if FULL else 4
SCENARIOS = {each.name: each for each in built_in()}
#: what takes longest, or is mostly the work of libraries: at full scale only
COSTLY = (
    "torch_rpc",
    "grad_server",
    "all_reduce",
    "gloo collective",
    "shm collective",
    "local collective",
    "ipc, tensors",
    "zmq, tensors",
    "process launcher",
    "p2p pool",
)
FAULTS = [(kind, each) for kind, errors in KINDS.items() for each in errors]


def is_costly(name: str) -> bool:
    return name.startswith(COSTLY) or name.endswith(("opened", "launched"))


def failures(report: Report) -> str:
    lines = [f"{each.outcome}: {each.fault}: {each.error}" for each in report.failures()]
    return "\n".join([*lines, report.stacks if "stuck:" in "".join(lines) else ""])


@pytest.mark.parametrize("name", [each for each in SCENARIOS if FULL or not is_costly(each)])
def test_operation_whose_nth_call_fails_raises_or_succeeds_and_works_again(name: str) -> None:
    report = run_scenario(SCENARIOS[name], share=SHARE)
    print(table([report]))  # noqa: T201 - shown by pytest when the test fails
    assert not report.failures(), failures(report)
    assert sum(each.tried for each in report.rows()) > 0


JOBS = [each for each in ("ipc", "zmq") if each in SCENARIOS]


@pytest.mark.parametrize("name", JOBS)
def test_operations_after_any_faults_work(name: str) -> None:
    job = SCENARIOS[name]
    operations, sides = st.sampled_from(job.operations), st.sampled_from(job.sides)
    faults = st.tuples(operations, st.sampled_from(FAULTS), sides, st.integers(1, 12)).map(
        lambda drawn: Fault(drawn[0], drawn[1][0], drawn[2], drawn[1][1], drawn[3])
    )

    @settings(
        max_examples=20 if FULL else 1,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(faults, min_size=10, max_size=40, unique=True))
    def any_plan_is_survived(plan: list[Fault]) -> None:
        report = run_scenario(job, plan=plan)
        assert not report.failures(), failures(report)

    any_plan_is_survived()


@pytest.mark.parametrize(
    ("faulty", "place", "outcome"),
    [
        ("deaf_afterwards", "alone", "broken"),
        ("silent", "alone", "timed out"),
        ("wrong", "alone", "wrong result"),
        ("unexplained", "alone", "odd error"),
        ("leaking", "whole", "left behind"),
        ("leaking", "alone", "left behind"),
        ("sound", "alone", "raised"),
    ],
)
def test_operation_that_does_not_survive_a_fault_is_found(
    faulty: str, place: Literal["alone", "whole"], outcome: str
) -> None:
    scenario = Scenario(faulty, place, {}, (f"anomaly_operations:{faulty}",))
    report = run_scenario(scenario, kinds=["thread"], bound=1.0)
    found = {each.outcome for each in report.outcomes} - {"unreached"}
    assert found == {outcome}, failures(report)


def test_futures_that_never_end_are_found() -> None:
    sections = {"transport": {"backend": "local"}, "launcher": {"backend": "thread"}}
    for each, outcome in (("forgetting", "left behind"), ("sound", "recovered")):
        scenario = Scenario(each, "job", sections, (f"anomaly_operations:{each}",))
        report = run_scenario(scenario, kinds=["thread"], bound=1.0)
        last = report.outcomes[-1]
        assert (last.fault.operation, last.outcome) == ("what is left", outcome), last


def test_operation_that_never_ends_is_found_and_shown() -> None:
    scenario = Scenario("hanging", "alone", {}, ("anomaly_operations:hanging",))
    report = run_scenario(scenario, kinds=["thread"], bound=1.0)
    assert [each.outcome for each in report.failures()] == ["stuck"]
    assert "wait_for_ever" in report.stacks


def test_command_prints_a_table_as_json() -> None:
    command = [sys.executable, "-m", "pparallel.testing.anomalies", "--json", "greedy placer"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert {each["operation"] for each in found["rows"]} == {"place"}
    assert found["failures"] == []
