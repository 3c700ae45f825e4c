"""Benchmarks run, and say what they found; how quick anything is, is nobody's test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
from benchmark_clients import Broken, InStep, Wrong, placed

from benchmarks.crews import Crew, crew
from benchmarks.harness import Aim, Contest
from benchmarks.harness.command import names
from benchmarks.harness.figures import Row, rows
from benchmarks.harness.processes import Stopwatch, descendants
from benchmarks.harness.report import Played, Report, shown
from benchmarks.harness.rounds import play
from benchmarks.harness.timing import spread, timed
from benchmarks.servers_peers import no_redis
from pparallel.testing.patience import until

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("events", "serializers")  #: the soak runs all of them


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "benchmarks", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.parametrize("name", QUICK)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    done = benchmark(name, "--quick", "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "found.json").read_text())
    rows = [row for played in found["played"] for row in played["rows"]]
    assert found["benchmark"] == name
    assert rows
    assert all(row["own"]["rounds"] == row["other"]["rounds"] == 1 for row in rows)
    assert done.stdout.count("\n| ") == len(rows) + 2
    assert "Traceback" not in done.stderr


def test_each_benchmark_has_contests() -> None:
    assert {*QUICK} < {*names()}
    code = "import importlib, sys\n"
    code += "assert all(importlib.import_module(f'benchmarks.{n}').CONTESTS for n in sys.argv[1:])"
    command = [sys.executable, "-W", "error", "-c", code, *names()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_several_benchmarks_run_one_after_the_other(tmp_path: Path) -> None:
    written = tmp_path / "found.md"
    chosen = ["import_time", "thread_pool", "--only", "import", "--only", "apply"]
    done = benchmark(*chosen, "--quick", "--markdown", str(written))
    assert done.returncode == 0, done.stderr
    assert written.read_text() == done.stdout
    titles = [line for line in done.stdout.splitlines() if line.startswith("## ")]
    assert titles == ["## import_time", "## thread_pool"]
    assert "| apply |" in done.stdout
    assert "| map |" not in done.stdout


def test_an_unknown_benchmark_is_named_with_those_that_exist() -> None:
    done = benchmark("process_poll")
    assert done.returncode == 2
    assert "process_poll" in done.stderr
    assert "process_pool" in done.stderr


def test_contenders_take_turns_and_the_first_round_warms_up() -> None:
    turns: list[tuple[str, int]] = []

    def turn(name: str, figure: float) -> dict[str, float]:
        turns.append((name, len(turns)))
        return {"wall": figure}

    contest = Contest(
        contenders={"ours": lambda _: turn("ours", 1), "peer": lambda _: turn("peer", 3)}
    )
    measured = play(contest, 2, "two").measured
    assert [name for name, _ in turns] == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert measured == {"ours": {"wall": [1, 1]}, "peer": {"wall": [3, 3]}}


def compared(own: list[float], other: list[float], at_least: float) -> Row:
    contest = Contest(
        contenders={"ours": lambda _: {}, "peer": lambda _: {}}, aims=[Aim("peer", at_least)]
    )
    (row,) = rows(contest, {"ours": {"wall": own}, "peer": {"wall": other}})
    return row


@pytest.mark.parametrize(("at_least", "reached"), [(4, "yes"), (6, "nearly"), (9, "no")])
def test_an_aim_is_reached_or_not(at_least: float, reached: str) -> None:
    row = compared([1, 2, 1], [4, 8, 8], at_least)
    assert (row.own.median, row.other.median) == (1, 8)
    assert (row.lower, row.upper) == (4, 6)
    row = compared([2, 2, 2], [8, 8, 16], at_least)
    assert (row.ratio, row.reached) == (4, reached)


def test_an_aim_that_names_a_stranger_is_refused() -> None:
    contest = Contest(contenders={"ours": lambda _: {}}, aims=[Aim("nobody", 1)])
    with pytest.raises(ValueError, match="nobody"):
        contest.pairs()


def test_a_wrong_result_ends_the_benchmark() -> None:
    turn = timed(lambda number: -number, lambda number: number + 1, lambda a, b: a == b)
    with pytest.raises(ValueError, match="call 0 has a wrong result: -1"):
        turn(0)


def test_arguments_differ_in_every_call() -> None:
    seen: list[int] = []
    turn = timed(seen.append, int, lambda _, __: True, calls=3)
    assert set(turn(0)) == {"p50", "p99", "cpu"}
    turn(1)
    assert seen == [*range(6)]


CLIENTS = 3


@contextmanager
def clients(folder: Path, *, polling: bool = False) -> Iterator[Crew]:
    opened = [partial(placed, each, CLIENTS, folder) for each in range(CLIENTS)]
    with crew(opened, polling=polling) as found:
        yield found
    assert len(list(folder.glob("closed-*"))) == CLIENTS


def test_the_clients_of_a_crew_go_through_their_steps_together(tmp_path: Path) -> None:
    with clients(tmp_path) as found:
        turn = found.turn(InStep)
        samples = [turn(number) for number in range(2)]
    assert len(list(tmp_path.glob("run-1-*"))) == CLIENTS
    assert all(each.keys() == {"wall", "client", "cpu"} for each in samples)
    assert all(each["client"] == 1 for each in samples)  # the median


def test_a_crew_that_polls_stands_still_between_its_turns(tmp_path: Path) -> None:
    def states() -> set[str]:
        pids = [int(each.read_text()) for each in tmp_path.glob("opened-*")]
        return {psutil.Process(each).status() for each in pids}

    with clients(tmp_path, polling=True) as found:
        turn = found.turn(InStep)
        turn(0)
        until(lambda: states() == {psutil.STATUS_STOPPED}, "the clients did not stand still")
        turn(1)


@pytest.mark.parametrize(
    ("part", "error", "says"),
    [
        (Wrong, ValueError, "turn 0 has a wrong result"),
        (Broken, RuntimeError, "LookupError: nothing is there"),
    ],
)
def test_a_crew_tells_what_went_wrong(
    part: type[InStep], error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says), clients(tmp_path) as found:
        found.turn(part)(0)


def test_who_is_left_out_is_reported() -> None:
    machine = {"cores": 1, "memory_gib": 1, "system": "", "python": "", "versions": {}}
    state: dict[str, object] = {"load": [], "pipe": {}}
    report = Report("servers", "", dict(machine), state, quick=True, after=state)
    report.played = [Played(each, "two", 0.0, [], {"redis": "no program"}) for each in ("a", "b")]
    assert report.markdown().count("Left out: redis: no program.") == 1


def test_redis_is_left_out_where_its_server_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "redis-server" in no_redis()


def test_figures_are_per_task() -> None:
    assert spread([8.0], tasks=4) == {"wall": 2.0}
    assert spread([1.0, 2.0, 3.0], tasks=2)["p50"] == 1.0


def test_the_processor_time_of_children_counts() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    watch = Stopwatch()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in set(descendants())
        assert watch.read() >= 0.3
        child.stdin.write(b"\n")
        child.stdin.close()
        child.wait()
    assert watch.read() >= 0.3


@pytest.mark.parametrize(
    ("figure", "metric", "text"),
    [
        (2.5, "wall", "2.50 s"),
        (0.0025, "p50", "2.50 ms"),
        (2.5e-6, "cpu", "2.50 us"),
        (3 << 30, "memory", "3,072 MiB"),
    ],
)
def test_figures_have_the_unit_that_suits_them(figure: float, metric: str, text: str) -> None:
    assert shown(figure, metric) == text
