"""The command line: which benchmarks are run, how, and where the figures go."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.contest import Making, Setting
from benchmarks.harness.figures import rows
from benchmarks.harness.machine import machine, state
from benchmarks.harness.pinning import PINS, possible
from benchmarks.harness.report import Played, Report
from benchmarks.harness.rounds import play

_NOT_BENCHMARKS = {"__init__", "__main__", "tasks", "peers", "ours", "many"}
_NOT_BENCHMARKS |= {"calls", "members", "away", "rpc_peers"}
_NOT_BENCHMARKS |= {"crews", "servers_ours", "servers_parts", "servers_peers"}
_NOT_BENCHMARKS |= {"gradients_ours", "gradients_parts", "gradients_peers", "gradients_floor"}
_NOT_BENCHMARKS |= {f"all_reduce_training_{each}" for each in ("ours", "parts", "peers")}


def names() -> list[str]:
    """Return the benchmarks that there are: every module of the folder that holds contests."""
    folder = Path(__file__).resolve().parent.parent
    return sorted({path.stem for path in folder.glob("*.py")} - _NOT_BENCHMARKS)


def main() -> int:
    """Run what the command line names."""
    parser = _parser()
    given = parser.parse_args()
    unknown = sorted(set(given.benchmark) - set(names()))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(names())}")
    if len(given.benchmark) == 1:
        report = run(given.benchmark[0], given)
        documents: list[object] = [report.plain()]
        text = report.markdown()
    else:
        documents, text = _each_alone(given)
    if given.json:
        Path(given.json).write_text(json.dumps(documents, indent=1) + "\n")
    if given.markdown:
        Path(given.markdown).write_text(text)
    sys.stdout.write(text)
    return 0


def run(name: str, given: argparse.Namespace) -> Report:
    """Run one benchmark in this process."""
    module = importlib.import_module(f"benchmarks.{name}")
    about = str(module.__doc__).partition("\n\n")[0].replace("\n", " ")
    setting = Setting(given.quick, given.backend, 1 if given.quick else given.rounds)
    trips = setting.count(1000, 50)
    report = Report(name, about, machine(), state(trips), given.quick)
    contests: dict[str, Making] = module.CONTESTS
    for title, making in contests.items():
        if given.only is None or any(each in title for each in given.only):
            report.played += _contest(title, making, setting, given.pin)
    report.after = state(trips)
    return report


def _contest(title: str, making: Making, setting: Setting, pins: list[str] | None) -> list[Played]:
    played = []
    with making(setting) as contest:
        wanted = [pin for pin in contest.pins if pins is None or pin in pins]
        wanted = wanted[:1] if setting.quick else wanted
        for pin in possible(tuple(wanted), machine_cores()):
            sys.stderr.write(f"{title}, {PINS[pin]} ...\n")
            outcome = play(contest, setting.rounds or contest.rounds, pin)
            found = rows(contest, outcome.measured)
            played.append(Played(title, pin, outcome.others, found, contest.left_out))
    return played


def machine_cores() -> int:
    """Return how many cores this process may use."""
    return int(str(machine()["cores"]))


def _each_alone(given: argparse.Namespace) -> tuple[list[object], str]:
    """Run several benchmarks, each in an interpreter of its own: none finds another's leavings."""
    documents, texts = [], []
    passed = _again(given)
    with tempfile.TemporaryDirectory() as folder:
        ours = ["--json", f"{folder}/found.json", "--markdown", f"{folder}/found.md"]
        for name in given.benchmark or names():
            command = [sys.executable, "-m", "benchmarks", name, *passed, *ours]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            documents += json.loads(Path(folder, "found.json").read_text())
            texts.append(Path(folder, "found.md").read_text())
    return documents, "\n".join(texts)


def _again(given: argparse.Namespace) -> list[str]:
    """Return the options as they were given."""
    several = [("--only", each) for each in given.only or ()]
    several += [("--pin", each) for each in given.pin or ()]
    several += [("--rounds", str(given.rounds))] if given.rounds else []
    words = [word for pair in several for word in pair]
    return [*words, "--backend", given.backend, *(["--quick"] if given.quick else [])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("benchmark", nargs="*", help="which to run; all, if none is named")
    parser.add_argument("--only", action="append", help="contests whose names contain this")
    parser.add_argument("--pin", action="append", choices=PINS, help="only these ways of pinning")
    parser.add_argument("--rounds", type=int, help="how many rounds count")
    parser.add_argument("--backend", default="process", help="the pool that is measured as ours")
    parser.add_argument("--quick", action="store_true", help="one tiny round: does it run?")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables to a file")
    return parser
