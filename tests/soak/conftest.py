"""The soak: random, long and statistical tests, which share a budget of time.

``make soak SOAK_MINUTES=20 SOAK=pools`` runs a folder of it. A test takes the fixture ``rounds``
and loops over it. Each failure is a line at the end, a FINDING, with the seed of its round;
SOAK_SEED makes that round the first one. Where a process crashed, the seed of first rounds, which
the run prints as it starts, has to do.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

MINUTES = float(os.environ.get("SOAK_MINUTES", "20"))
#: of the first round of each test; the processes of a run get it by their environment
SEED = int(os.environ.setdefault("SOAK_SEED", str(random.SystemRandom().randrange(2**32))))
GRACE = 300.0  #: seconds that the last round of a test may take

_rounds = pytest.StashKey["Rounds"]()
_seconds = pytest.StashKey[float]()

settings.register_profile(
    "soak",
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("soak")


class Rounds:
    """The rounds of one test: a random generator for each, until the test's time is over.

    Attributes:
        seconds: the period in which new rounds start.
        seed: of the latest round.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.seed = SEED

    def __iter__(self) -> Iterator[random.Random]:
        end = time.monotonic() + self.seconds
        yield random.Random(self.seed)
        while time.monotonic() < end:
            self.seed += 1
            yield random.Random(self.seed)


def pytest_report_header() -> str:
    return f"SOAK_SEED={SEED}"


@pytest.hookimpl(trylast=True)  # after the tests are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    jobs = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    config.stash[_seconds] = seconds = MINUTES * 60 * jobs / max(len(items), 1)
    for each in items:
        each.add_marker(pytest.mark.timeout(seconds + GRACE))


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Rounds:
    """Loop over it: each round gets a seeded generator, until this test's time is over."""
    found = Rounds(request.config.stash[_seconds])
    request.node.stash[_rounds] = found
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and _rounds in item.stash:
        report.user_properties.append(("seed", item.stash[_rounds].seed))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("failed") + terminalreporter.getreports("error"):
        seeds = [f" seed {each}" for name, each in _properties(report) if name == "seed"]
        reason = report.longreprtext.strip().splitlines()[-1:]
        crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        words = crash.splitlines()[:1] or reason
        terminalreporter.write_line(f"FINDING {report.nodeid}{''.join(seeds)}: {''.join(words)}")


def _properties(report: pytest.TestReport) -> list[tuple[str, object]]:
    """Return a test's properties; a file that could not be collected has none."""
    return getattr(report, "user_properties", [])
