"""``pparallel run`` in a terminal: a real pseudo-terminal, and a screen that shows what comes."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pparallel.testing.patience import until

ROOT = Path(__file__).resolve().parents[2]

JOB = """\
members: [ps, worker-0, worker-1]
target: job:main
reducer: {backend: local}
pool: {size: 2}
"""

TARGETS = r"""
import logging
import os
import pathlib
import sys
import threading

HERE = pathlib.Path(__file__).parent


def wait(rt, name="go"):
    pause = threading.Event()
    while not (HERE / name).exists() and not rt.stopping:
        pause.wait(0.01)


def main(rt):
    print("hello from", rt.name)
    logging.getLogger("job").warning("logged by %s", rt.name)
    for step in range(10 * rt.rank + 1):
        rt.report(step=step, loss=0.123456)
    wait(rt)
    return {"rank": rt.rank}


def tasks(rt):
    def odd(x):
        if x % 2:
            raise ValueError(x)

    for each in [rt.pool.apply_async(odd, (x,)) for x in range(4)]:
        each.wait()
    wait(rt)


def crowd(rt):
    rt.report(step=rt.rank)
    wait(rt)


def fail(rt):
    if rt.rank == 1:
        wait(rt, "fail")
        raise RuntimeError("the sensor is off")
    rt.group().barrier()


def odd_prints(rt):
    if rt.rank:
        return
    print("x" * 150 + "END")
    print("\x1b[31mred\x1b[0m and \x1b[2J\x1b[Hjumpy\x07")
    print("10%\r50%\r100%")
    print("a", end="")
    print("b", end="")
    print("", flush=True)
    sys.stderr.write("to stderr\n")
    rt.pool.apply(print, ("from a pool",))
    print("no line break", end="")
    wait(rt)


def flood(rt):
    if rt.rank:
        return
    for number in range(3_000):
        print("line", number)


def spin(rt):
    rt.report(step=1)
    while True:
        pass


def awkward(rt):
    class Bad:
        def __str__(self):
            raise ValueError("no text")

    rt.report(bad=Bad(), text="a\nb\x1b[2J", step=float("nan"), **{f"k{n}": n for n in range(99)})
    wait(rt)


def survive(rt):
    rt.report(step=1)
    wait(rt)
    for number in range(100):
        print("to nobody", number)
        rt.report(step=number)
    (HERE / f"survived-{rt.rank}").write_text("yes")
"""


def load_screenshot() -> Any:
    spec = importlib.util.spec_from_file_location("screenshot", ROOT / "docs" / "screenshot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


screenshot = load_screenshot()
Start = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "crowd.yaml").write_text("members: 60\ntarget: job:crowd\n")
    (tmp_path / "job.py").write_text(TARGETS)
    return tmp_path


def start(folder: Path, *args: str, config: str = "job.yaml", **options: Any) -> Any:
    command = [sys.executable, "-m", "pparallel", "run", str(folder / config), *args]
    return screenshot.TerminalRun(command, **options)


def go(folder: Path, name: str = "go") -> None:
    (folder / name).touch()


def row(run: Any, member: str) -> list[str]:
    """Return the live row of a member, as words; none if there is no display."""
    heading = next((y for y, line in enumerate(run.lines) if line.startswith("member ")), None)
    if heading is None:
        return []
    rows = [line.split() for line in run.lines[heading + 1 :]]
    return next((each for each in rows if each and each[0] == member), [])


def running(run: Any, *members: str) -> Callable[[], bool]:
    return lambda: all(row(run, each)[1:2] == ["running"] for each in members)


# -- what is shown --------------------------------------------------------------------------------


def test_each_member_has_a_line_with_its_values(folder: Path) -> None:
    with start(folder) as run:
        run.until(
            lambda: (
                row(run, "worker-1")[2:3] == ["20"]
                and row(run, "worker-0")[2:3] == ["10"]
                and row(run, "ps")[2:3] == ["0"]
                and sum("hello" in line for line in run.lines) == 3
                and sum("logged by" in line for line in run.lines) == 3
            ),
            "the rows",
        )
        for rank, name in enumerate(["ps", "worker-0", "worker-1"]):
            name_, state, steps, _, elapsed, *reports = row(run, name)
            assert (name_, state, steps, reports) == (
                name,
                "running",
                str(10 * rank),
                ["loss=0.1235"],
            )
            assert re.fullmatch(r"\d:\d\d", elapsed)
        heading = next(y for y, line in enumerate(run.lines) if line.startswith("member "))
        above = run.lines[:heading]
        for name in ("ps", "worker-0", "worker-1"):
            assert f"[{name}] hello from {name}" in above
            assert f"[{name}] WARNING: logged by {name}" in above
        assert not run.screen.cursor.hidden
        go(folder)
        assert run.finish() == 0
        assert not run.screen.cursor.hidden
        shown = [line for line in run.lines if line]
        assert re.fullmatch(r"done in \d+\.\d\d s", shown[-1])
        assert not any("elapsed" in line for line in shown)
        assert [line.split()[:3] for line in shown[-4:-1]] == [
            ["ps", "done", "0"],
            ["worker-0", "done", "10"],
            ["worker-1", "done", "20"],
        ]
        assert "{'rank': 2}" in shown[-2]
        assert colors(run) > {"default"}


def colors(run: Any) -> set[str]:
    return {char.fg for each in run.screen.buffer.values() for char in each.values()}


def test_it_is_coloured_unless_the_user_wants_none(folder: Path) -> None:
    go(folder)
    with start(folder, env={"NO_COLOR": "1"}) as run:
        assert run.finish() == 0
        assert colors(run) == {"default"}


def test_tasks_are_counted(folder: Path) -> None:
    with start(folder, "job:tasks") as run:
        run.until(lambda: "2/4, 2 failed" in " ".join(row(run, "worker-1")), "the tasks")
        go(folder)
        assert run.finish() == 0
        assert sum("2/4, 2 failed" in line for line in run.lines) == 3  # of the summary


def test_many_members_fit(folder: Path) -> None:
    with start(folder, config="crowd.yaml", rows=20) as run:
        run.until(lambda: any("more: " in line for line in run.lines), "the last line")
        run.until(lambda: any("running" in line for line in run.lines), "a member that runs")
        assert run.scrolled == []
        assert run.lines[0].startswith("member ")
        rest = next(line for line in run.lines if "more: " in line)
        shown = [line for line in run.lines if line.startswith("member-")]
        assert len(shown) == 17
        assert rest.startswith("... and 43 more: ")
        go(folder)
        code, told = run.finish(), [*run.scrolled, *run.lines]
        assert code == 0, "\n".join(told)
        assert sum(bool(re.match(r"member-\d+ +done", line)) for line in told) == 60


def test_who_fails_and_who_stops(folder: Path) -> None:
    with start(folder, "job:fail", rows=60) as run:
        run.until(running(run, "ps", "worker-0", "worker-1"), "rows of running members")
        go(folder, "fail")
        assert run.finish() == 1
        assert not run.screen.cursor.hidden
        shown = "\n".join(run.lines)
        assert re.search(r"^worker-0 +failed", shown, re.M)
        assert re.search(r"^ps +stopped", shown, re.M)
        assert "member 'worker-0' failed" in shown
        assert "RuntimeError: the sensor is off" in shown
        assert "elapsed" not in shown


def test_a_wrong_config_in_a_terminal(folder: Path) -> None:
    with start(folder, "--set", "pool.sise=3", columns=200) as run:
        assert run.finish() == 2
        shown = " ".join(line for line in run.lines if line)
        assert shown.startswith("pparallel: ")
        assert "Didyoumean'size'?" in shown.replace(" ", "")  # lines are folded anywhere


def test_odd_prints_do_not_disturb_the_rows(folder: Path) -> None:
    with start(folder, "job:odd_prints", columns=80) as run:
        run.until(
            lambda: any("from a pool" in line for line in run.lines) and row(run, "worker-1") != [],
            "what is printed, and the rows below",
        )
        assert len([line for line in run.lines if line.startswith("member ")]) == 1
        go(folder)
        assert run.finish() == 0
        shown = [line for line in run.lines if line]
        assert shown[0] == "[ps] " + "x" * 75
        assert shown[1] == "x" * 75 + "END"
        for line in (
            "[ps] red and jumpy",
            "[ps] 100%",
            "[ps] ab",
            "[ps] to stderr",
            "[ps] from a pool",
            "[ps] no line break",
        ):
            assert shown.count(line) == 1, line
        y = run.lines.index("[ps] red and jumpy")
        assert [run.screen.buffer[y][x].fg for x in (5, 9)] == ["red", "default"]


def test_no_line_of_a_flood_is_lost(folder: Path) -> None:
    with start(folder, "job:flood") as run:
        assert run.finish() == 0
        numbers = re.findall(rb"\] line (\d+)\r?\n", re.sub(rb"\x1b\[[0-9;]*m", b"", run.received))
        assert list(map(int, numbers)) == list(range(3_000))


def test_awkward_reports(folder: Path) -> None:
    with start(folder, "job:awkward", columns=60) as run:
        run.until(running(run, "ps", "worker-0", "worker-1"), "rows of running members")
        assert run.lines[0].startswith("member ")
        go(folder)
        assert run.finish() == 0


# -- where it is not shown ------------------------------------------------------------------------


@pytest.mark.parametrize(("args", "env"), [(["--plain"], {}), ([], {"TERM": "dumb"})])
def test_plain_text(folder: Path, args: list[str], env: dict[str, str]) -> None:
    go(folder)
    with start(folder, *args, env=env) as run:
        assert run.finish() == 0
        assert b"\x1b" not in run.received
        assert b"[worker-0] step=10 loss=0.1235" in run.received


def test_a_file_gets_no_escapes(folder: Path) -> None:
    go(folder)
    error, output = folder / "error.txt", folder / "output.txt"
    run_it = f"{sys.executable} -m pparallel run {folder / 'job.yaml'} job:odd_prints"
    with screenshot.TerminalRun(["sh", "-c", f"{run_it} 2> {error}"]) as run:
        assert run.finish() == 0
        assert error.read_text() == "to stderr\n"
    with screenshot.TerminalRun(
        ["sh", "-c", f"{run_it.replace('odd_prints', 'main')} > {output}"]
    ) as run:
        assert run.finish() == 0
        assert "\x1b" not in output.read_text()
        assert "[worker-0] step=10 loss=0.1235" in output.read_text()
    command = run_it.replace("odd_prints", "main")
    with screenshot.TerminalRun(["sh", "-c", f"{command} --json > {output}"]) as run:
        assert run.finish() == 0
        assert json.loads(output.read_text())["members"]["worker-1"]["steps"] == 20


# -- ways out -------------------------------------------------------------------------------------


def test_an_interrupt_leaves_the_terminal_as_it_was(folder: Path) -> None:
    with start(folder, "job:spin") as run:
        run.until(running(run, "ps", "worker-0", "worker-1"), "rows of running members")
        run.type("\x03")
        began = time.monotonic()
        assert run.finish() == 130
        assert time.monotonic() - began <= 10.0  # two are promised, on an idle machine
        assert not run.screen.cursor.hidden
        shown = [line for line in run.lines if line]
        assert any(line.endswith("interrupted") for line in shown)
        assert not any("elapsed" in line for line in shown)
        assert run.screen.cursor.x == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_the_cursor_visible(folder: Path, number: signal.Signals) -> None:
    with start(folder) as run:
        run.until(running(run, "ps", "worker-0", "worker-1"), "rows of running members")
        run.process.send_signal(number)
        assert run.finish() == -number
        assert not run.screen.cursor.hidden
        assert run.screen.cursor.x == 0


def test_a_terminal_that_is_closed_does_not_end_the_job(folder: Path) -> None:
    run_it = f"{sys.executable} -m pparallel run {folder / 'job.yaml'} job:survive"
    with screenshot.TerminalRun(["sh", "-c", f"trap '' HUP; exec {run_it}"]) as run:
        run.until(running(run, "ps", "worker-0", "worker-1"), "rows of running members")
        run.close()
        go(folder)
        until(lambda: run.process.poll() is not None, "the end of the job")
        assert run.process.returncode == 0
        assert all((folder / f"survived-{rank}").exists() for rank in range(3))


def test_the_pictures_in_the_docs_can_be_made(folder: Path) -> None:
    with start(folder, columns=70, rows=8) as run:
        run.until(running(run, "worker-1"), "a row")
        picture = screenshot.svg(run.screen, "a title")
        go(folder)
        assert run.finish() == 0
    assert picture.startswith("<svg")
    assert "a&#160;title" in picture or "a title" in picture
    assert "worker-1" in picture
    for name in ("run.svg", "run_done.svg"):
        drawn = (ROOT / "docs" / "images" / name).read_text()
        assert "worker-2" in drawn
        assert f"images/{name}" in (ROOT / "docs" / "cli.md").read_text()
