"""Runs pytest in several processes; each test that fails runs once more, alone.

``python tests/gate.py [--jobs N] PATH...`` exits with pytest's status. A test that fails twice
fails the run. One that passes the second time is listed at the end as FLAKY, with the stack of its
first failure, and belongs in ``tests/flaky.txt``. More than MOST_FLAKY fail the run.
"""

from __future__ import annotations

import argparse
import sys

import pytest

MOST_FLAKY = 2
MOST_RERUN = 20  #: failures of which each runs once more; a larger number is no accident

# Neighbours share fixtures, so that each process gets a run of tests and takes some of another's at
# its end. A process that ends in the midst of a test, as it does where a hang can't be interrupted,
# fails that test and is replaced.
SPREAD = ("--dist", "worksteal", "--max-worker-restart", "20")


class Recorder:
    """A pytest plugin that notes how tests end.

    Attributes:
        failures: the text of the first failure of each test, by the test's id.
        ended: the ids of the tests that ran to their end.
        is_broken: whether something failed that is no test, and so can't run once more.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.ended: set[str] = set()
        self.is_broken = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.setdefault(report.nodeid, report.longreprtext)
        elif report.when == "teardown":
            self.ended.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.is_broken |= report.failed


def run(jobs: int, tests: list[str]) -> tuple[int, Recorder]:
    recorder = Recorder()
    return pytest.main(["-n", str(jobs), *SPREAD, *tests], plugins=[recorder]), recorder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run the tests")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files and folders of tests")
    options = parser.parse_args()
    status, first = run(options.jobs, options.paths)
    if status != pytest.ExitCode.TESTS_FAILED or first.is_broken:
        return status
    if len(first.failures) > MOST_RERUN:
        print(f"{len(first.failures)} tests failed: too many to run once more")
        return status
    print(f"\n{len(first.failures)} failed; each runs once more, alone", flush=True)
    again, second = run(1, [*first.failures])
    flaky = second.ended - second.failures.keys()
    for name in flaky & first.failures.keys():
        print(f"\n{first.failures[name]}\nFLAKY {name}")
    for name in first.failures.keys() - flaky:
        print(f"failed twice: {name}")
    if len(flaky) > MOST_FLAKY:
        print(f"{len(flaky)} tests are flaky, more than {MOST_FLAKY}")
        return status
    return again


if __name__ == "__main__":
    sys.path.remove(sys.path[0])  # the folders beside this file are no packages
    sys.exit(main())
