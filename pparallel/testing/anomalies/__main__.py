"""Prints what came of the built-in scenarios; see ``--help``."""

from __future__ import annotations

import argparse
import json
import sys

from pparallel.testing.anomalies.faults import KINDS
from pparallel.testing.anomalies.operations import built_in
from pparallel.testing.anomalies.rounds import LIMIT
from pparallel.testing.anomalies.running import Report, run_scenario, table


def main() -> int:
    """Run the scenarios that are asked for; return 1 if a round did not end as it should."""
    given = _arguments()
    scenarios = [each for each in built_in() if not given.only or each.name in given.only]
    if given.list:
        print("\n".join(each.name for each in scenarios))  # noqa: T201
        return 0
    reports: list[Report] = []
    for number, each in enumerate(scenarios, 1):
        _show(f"[{number}/{len(scenarios)}] {each.name}")
        reports.append(run_scenario(each, share=given.share, kinds=given.kinds, progress=_show))
        if given.stacks and any(each.outcome == "stuck" for each in reports[-1].outcomes):
            _show(reports[-1].stacks)
    failures = [each for report in reports for each in report.failures()]
    print(_json(reports) if given.json else table(reports))  # noqa: T201
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pparallel.testing.anomalies",
        description="Fail the N-th call of each kind in each operation, for N = 1, 2, ...",
    )
    parser.add_argument("only", nargs="*", help="names of scenarios; by default all")
    parser.add_argument("--list", action="store_true", help="print the names of the scenarios")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument("--stacks", action="store_true", help="print the stacks of what was stuck")
    parser.add_argument("--share", type=int, default=1, help="run one in so many rounds")
    parser.add_argument(
        "--kinds", nargs="+", default=[], choices=[*KINDS, LIMIT], help="of faults; by default all"
    )
    return parser.parse_args()


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _json(reports: list[Report]) -> str:
    rows = [each._asdict() for report in reports for each in report.rows()]
    failures = [
        {"scenario": report.scenario.name, "fault": str(each.fault), "outcome": each.outcome}
        for report in reports
        for each in report.failures()
    ]
    return json.dumps({"rows": rows, "failures": failures}, indent=1)


if __name__ == "__main__":
    sys.exit(main())
