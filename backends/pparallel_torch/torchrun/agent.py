"""The process in which torch's elastic agent runs. It imports torch; the ranks need not."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pparallel_torch.torchrun.plan import Plan, Report

_PROGRAM = (
    "import json, pathlib, sys; "
    "sys.path[:] = json.loads(pathlib.Path(sys.argv[1], 'path').read_text()); "
    "from pparallel_torch.torchrun.rank import main; main(sys.argv[1])"
)


def main(payload: bytes, descriptors: Sequence[int]) -> None:
    """Run the agent until all ranks have ended well, or one too often, and report how."""
    plan = Plan.loads(payload)
    report = _run(plan)
    with open(descriptors[0], "wb") as file:
        file.write(report.dumps())


def _run(plan: Plan) -> Report:
    command = (*plan.flags, "-c", _PROGRAM, plan.directory)
    try:
        elastic_launch(_config(plan), sys.executable)(*command)
    except ChildFailedError as error:
        ended = {rank: (each.pid, each.exitcode) for rank, each in error.failures.items()}
        return Report(ended=ended)
    except SignalException:
        return Report()
    except Exception as error:  # noqa: BLE001 - raised in the launching process
        return Report(error=(type(error).__name__, str(error), traceback.format_exc()))
    return Report()


def _config(plan: Plan) -> LaunchConfig:
    patience = max(1, round(plan.rdzv_timeout))
    given: dict[str, Any] = {
        "min_nodes": plan.nnodes,
        "max_nodes": plan.nnodes,
        "nproc_per_node": plan.nproc_per_node,
        "run_id": plan.rdzv_id,
        "role": "pparallel",
        "rdzv_backend": plan.rdzv_backend,
        "rdzv_endpoint": plan.rdzv_endpoint,
        "rdzv_configs": {"timeout": patience, "join_timeout": patience},
        "max_restarts": plan.max_restarts,
        "monitor_interval": plan.monitor_interval,
        "local_addr": plan.local_addr,
        "logs_specs": DefaultLogsSpecs(log_dir=os.path.join(plan.directory, "logs")),
        "signals_to_handle": "SIGTERM",  # Ctrl-C is for the launching process
        "shutdown_timeout": plan.shutdown_timeout,
    }
    known = {each.name for each in fields(LaunchConfig)}  # an older torch knows fewer
    return LaunchConfig(**{name: value for name, value in given.items() if name in known})
