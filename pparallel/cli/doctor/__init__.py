"""``pparallel doctor``: whether this machine is fit for jobs, and what to do if not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import typer

from pparallel.cli.columns import aligned
from pparallel.cli.doctor import gpus, limits, machine, ports, software
from pparallel.cli.doctor.check import Check, guarded


def show_checks(wanted_ports: Sequence[int] | None, *, as_json: bool) -> None:
    """Check all there is to check, and print what came of it.

    Raises:
        typer.Exit: a check has failed.
    """
    checks = [check for name, make in _checks(wanted_ports) for check in guarded(name, make)]
    typer.echo(_json(checks) if as_json else _text(checks))
    if any(each.status == "fail" for each in checks):
        raise typer.Exit(1)


def _checks(
    wanted_ports: Sequence[int] | None,
) -> Iterator[tuple[str, Callable[[], Sequence[Check]]]]:
    yield "python", software.python
    yield "platform", machine.system
    yield "cores", machine.cores
    yield "memory", machine.memory
    yield "shared memory", machine.shared_memory
    yield "open files", limits.open_files
    yield "loopback", ports.loopback
    yield "ephemeral ports", ports.ephemeral
    yield "ports", partial(ports.rendezvous, wanted_ports or ports.TYPICAL)
    yield "gpus", gpus.gpus
    yield "libraries", software.libraries
    yield "backends", software.backends
    yield "plugins", software.plugins


def _json(checks: Sequence[Check]) -> str:
    worst = max(checks, key=lambda each: ("ok", "warn", "fail").index(each.status)).status
    listed = [dataclasses.asdict(each) for each in checks]
    return json.dumps({"status": worst, "checks": listed}, indent=2)


def _text(checks: Sequence[Check]) -> str:
    rows = [(each.status, each.name, each.detail) for each in checks]
    lines = []
    for check, line in zip(checks, aligned(rows), strict=True):
        lines.append(line)
        if check.advice:
            lines.append(f"      -> {check.advice}")
    return "\n".join(lines)
