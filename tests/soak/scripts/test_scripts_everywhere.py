"""Scripts of users in all ways, beside their originals, and their memory over long runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import script_programs as programs
from free_ports import free_ports

WAYS = (*programs.POOLS, *programs.TRANSPORTS)
RAY = ("ray_pool", "ray")


def kinds_of(name: str) -> set[str]:
    """Return in which kinds of ways a script makes sense where memory is not shared."""
    ways = () if name == "hogwild" else programs.SCRIPTS[name].ways
    return {programs.kind_of(each) for each in ways if each not in {"fork", "ipc"}}


ON_RAY = [
    (name, way)
    for name in programs.SCRIPTS
    for way in RAY
    if programs.kind_of(way) in kinds_of(name)
]


@pytest.mark.parametrize("how", programs.HOW)
@pytest.mark.parametrize("way", WAYS)
def test_programs_in_all_ways(way: str, how: str, tmp_path: Path) -> None:
    if way in RAY:
        pytest.importorskip("ray")
    found = programs.run_programs(
        programs.programs_of(way, how), way, tmp_path, how, is_guarded=how == "script"
    )
    assert programs.failures(found, way) == {}


@pytest.mark.parametrize("way", programs.ORIGINALS)
def test_originals_give_the_expected_values(way: str, tmp_path: Path) -> None:
    names = [each for each in programs.programs_of(way) if not programs.PROGRAMS[each].differs]
    source = programs.compose(names, way, is_guarded=True)
    assert (
        programs.failures(
            programs.run_script(source, tmp_path, str(free_ports()[0]), **programs.MODULES), way
        )
        == {}
    )


@pytest.mark.parametrize(
    ("name", "way"),
    [*((name, way) for name in programs.SCRIPTS for way in programs.SCRIPTS[name].ways), *ON_RAY],
)
def test_scripts_in_all_ways(name: str, way: str, tmp_path: Path) -> None:
    if way in RAY:
        pytest.importorskip("ray")
    script = programs.SCRIPTS[name]
    found = script.run(way, tmp_path)
    expected = script.otherwise.get(way, script.expected)
    assert programs.matches(found, expected), f"{found}, not {expected}"


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_pytest_modules_in_all_ways(mode: str, tmp_path: Path) -> None:
    texts = programs.run_pytest_module(tmp_path, ["fork", "forkserver", "spawn"], mode)
    assert texts == ["assert 3 < 2", "words\nassert 3 == 2"] * 3 + ["assert 3 < 2"]


# -- memory ------------------------------------------------------------------------------------

LONG = """
import json, os, sys

SUBMITS = 10_000
table = {n: str(n) for n in range(40_000)}
step = 0
model = None

def work(n):
    global model
    if model is None:
        model = bytearray(5_000_000)
    return step, table[n % 40_000] == str(n % 40_000), len(model)

def pss(_=0):
    with open("/proc/self/smaps_rollup") as lines:
        kinds = ("Pss_Anon:", "Pss_Shmem:")  # no libraries: other processes share them
        return sum(int(each.split()[1]) for each in lines if each.startswith(kinds))

def run_all(submit):
    global step
    wrong, marks = [], []
    for step in range(SUBMITS):
        found = submit(work, step)
        if found != (step, True, 5_000_000):
            wrong.append(found)
        if step in (500, SUBMITS - 1):
            marks.append([pss(), submit(pss)])
    return wrong[:3], marks
"""
OURS = """
import pparallel

with pparallel.build({"pool": json.loads(sys.argv[1])}) as rt:
    print(json.dumps(run_all(lambda *args: rt.pool.submit(*args).result(60))))
"""
LOKY = """
import loky

executor = loky.get_reusable_executor(1)
print(json.dumps(run_all(lambda *args: executor.submit(*args).result(60))))
executor.shutdown()
"""


@pytest.mark.parametrize("way", ["fork", "forkserver", "spawn"])
def test_memory_stays_flat_while_a_large_global_is_named(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LIMIT", 600)
    wrong, (first, last) = programs.run_script(
        LONG + OURS, tmp_path, json.dumps(programs.POOLS[way])
    )
    grown = [after - before for before, after in zip(first, last, strict=True)]
    assert not wrong
    assert max(grown) < 3000, f"KB in {way}: {first}, then {last}"


def test_memory_is_no_more_than_lokys(tmp_path: Path) -> None:
    pytest.importorskip("loky")
    submits = LONG.replace("10_000\ntable", "1_000\ntable")
    _, ours = programs.run_script(
        submits + OURS, tmp_path, json.dumps(programs.POOLS["forkserver"])
    )
    _, theirs = programs.run_script(submits + LOKY, tmp_path)
    assert sum(ours[-1]) < 1.25 * sum(theirs[-1]) + 20_000, f"KB: {ours}, loky {theirs}"


# -- members that run the script themselves ----------------------------------------------------


def test_ranks_of_torchrun_send_the_script_by_name(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(programs.RANKS + programs.UNDER_TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=programs.LIMIT, check=False
    )
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == programs.RANKS_FOUND


def test_members_of_a_world_send_the_script_by_name(tmp_path: Path) -> None:
    ports = map(str, free_ports())
    assert (
        programs.run_by_hand(programs.RANKS + programs.IN_A_WORLD, tmp_path, *ports)
        == programs.RANKS_FOUND
    )
