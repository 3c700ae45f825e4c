"""Launcher on torch's elastic agent."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import ConfigError
from pparallel.interfaces.launcher import LaunchContext, Launcher, RankSpec, StartMethod
from pparallel.machine.cpus import usable_cpus
from pparallel.machine.threads import limit_threads
from pparallel.runtime.job_folder import JobFolder
from pparallel.runtime.pools import nesting
from pparallel.runtime.resources import explaining
from pparallel_torch.torchrun.context import TorchrunContext
from pparallel_torch.torchrun.plan import Plan

if TYPE_CHECKING:
    from pparallel.interfaces.serializer import Serializer
    from pparallel.runtime.member import Member
    from pparallel_torch.config import TorchrunLauncherConfig


class TorchrunLauncher(Launcher):
    """Has torch's elastic agent run the ranks, and start all of them again when one fails.

    A rank is a program that the agent starts: a fresh interpreter, whatever ``start_method`` says,
    which imports torch only if what it runs does. It never outlives this process, whatever
    ``daemon`` says.
    """

    def __init__(
        self, config: TorchrunLauncherConfig, *, member: Member, serializer: Serializer
    ) -> None:
        self.config = config
        self._serializer = serializer

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        nesting.check("launches ranks")
        here = self._on_this_machine(len(ranks))
        folder = JobFolder()
        try:
            plan = self._plan(str(folder.path), here)
            limits = self._limits(here)
            told = [replace(each, env={**limits, **each.env}) for each in ranks]
            with explaining("starting ranks by torchrun"):
                return TorchrunContext(told, self._serializer, plan, folder.remove)
        except BaseException:
            folder.remove()
            raise

    def _on_this_machine(self, size: int) -> int:
        nnodes = self.config.nnodes
        here, left = divmod(size, nnodes)
        if left or not here:
            message = f"{size} ranks cannot be dealt to {nnodes} machines, as many to each"
            raise ConfigError(message, path="launcher.nnodes")
        if nnodes > 1 and not (self.config.rdzv_endpoint and self.config.rdzv_id):
            message = (
                f"the agents of {nnodes} machines must know where to meet, and for which job: "
                "give rdzv_endpoint: HOST:PORT and rdzv_id, the same on each"
            )
            raise ConfigError(message, path="launcher.rdzv_endpoint")
        return here

    def _limits(self, here: int) -> dict[str, str]:
        """Return the variables that keep each of so many ranks to its share of the cores."""
        threads = self.config.threads_per_rank
        if threads is None:
            cores = usable_cpus()
            threads = max(1, cores // here)
            if threads == cores or "OMP_NUM_THREADS" in os.environ:
                return {}
        return limit_threads(threads)

    def _plan(self, directory: str, here: int) -> Plan:
        config = self.config
        alone = config.nnodes == 1
        return Plan(
            directory=directory,
            flags=subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            nproc_per_node=here,
            nnodes=config.nnodes,
            max_restarts=config.max_restarts,
            rdzv_backend=config.rdzv_backend,
            rdzv_endpoint=config.rdzv_endpoint or "localhost:0",
            rdzv_id=config.rdzv_id or uuid.uuid4().hex,
            rdzv_timeout=config.rdzv_timeout,
            local_addr=config.local_addr or ("127.0.0.1" if alone else None),
            monitor_interval=config.monitor_interval,
            shutdown_timeout=config.shutdown_timeout,
        )
