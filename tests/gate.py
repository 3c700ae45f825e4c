"""Runs pytest in several processes; each test that fails runs once more, without others beside it.

``python tests/gate.py [--jobs N] PATH...`` exits with pytest's status. A test that fails twice
fails the run. One that passes the second time is listed at the end as FLAKY, with the stack of its
first failure, and belongs in ``tests/flaky.txt``. More than MOST_FLAKY fail the run. The stacks of
a process that crashed stand where it crashed, further up in the output.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

MOST_FLAKY = 2
MOST_RERUN = 10  #: at most this many failures run again; more indicate a broken build

ROOT = Path(__file__).resolve().parent.parent
# Adjacent tests share fixtures: each process gets a contiguous part, and an idle process steals
# from the longest queue. A process that ends in the midst of a test, as it does where a hang cannot
# be interrupted, fails that test and is replaced.
OPTIONS = ("--dist", "worksteal", "--max-worker-restart", "20")


class Recorder:
    """A pytest plugin that notes how tests end.

    Attributes:
        failures: the text of the first failure of each test, by the test's id.
        passed: the ids of the tests that passed; a failure while they are torn down counts above.
        has_collection_error: whether a file could not be collected.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.passed: set[str] = set()
        self.has_collection_error = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.setdefault(report.nodeid, report.longreprtext)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.has_collection_error |= report.failed


def run_pytest(root: Path, jobs: int, tests: list[str]) -> tuple[int, Recorder]:
    recorder = Recorder()
    place = ["--rootdir", str(root), "-c", str(root / "pyproject.toml")]
    return pytest.main([*place, "-n", str(jobs), *OPTIONS, *tests], plugins=[recorder]), recorder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run the tests")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files and folders of tests")
    options = parser.parse_args()
    status, first = run_pytest(options.root, options.jobs, options.paths)
    if status != pytest.ExitCode.TESTS_FAILED:
        return status
    if first.has_collection_error or len(first.failures) > MOST_RERUN:
        print(f"{len(first.failures)} tests failed, or files could not be collected: no second run")
        return status
    print(f"\n{len(first.failures)} failed; each runs once more", flush=True)
    ids = [str(options.root / each) for each in first.failures]
    second_status, second = run_pytest(options.root, 1, ids)
    flaky = [each for each in first.failures if each in second.passed - second.failures.keys()]
    for name in flaky:
        print(f"\n{first.failures[name]}\nFLAKY {name}")
    for name in first.failures:
        if name not in flaky:
            print(f"FAILED TWICE {name}")
    if len(flaky) > MOST_FLAKY:
        print(f"{len(flaky)} tests are flaky, more than {MOST_FLAKY}")
    is_sound = len(flaky) == len(first.failures) and len(flaky) <= MOST_FLAKY
    return second_status if is_sound else status


if __name__ == "__main__":
    sys.path.remove(sys.path[0])  # the folders beside this file are no packages
    sys.exit(main())
