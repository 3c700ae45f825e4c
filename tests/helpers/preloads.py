"""What the processes of tests are forked with: it would take each of them long to import.

Whatever a test says, its fork server is one of two, so that few are started: one that has imported
torch, and one that has not. A test whose subject is what is preloaded names other modules.
"""

from __future__ import annotations

from collections.abc import Sequence

#: without torch
LIGHT = (
    "pytest",
    "launched",
    "launched_jobs",
    "pparallel.builder.launch",
    "pparallel.builder.runtime",
    "pparallel.compat.machin.pool.prepared",
    "pparallel.compat.machin.pool.working",
    "pparallel.testing.chaos",
    "pparallel.testing.deaths",
    "pparallel.testing.launcher",
    "pparallel.testing.pool.tasks",
    "pparallel_ipc.config",
    "pparallel_local.config",
    "pparallel_placers.config",
    "pparallel_process.config",
    "pparallel_process.launcher.rank",
    "pparallel_process.worker",
    "pparallel_redis",
    "pparallel_reducers",
    "pparallel_serializers",
    "pparallel_serializers.dill",
    "pparallel_servers",
    "pparallel_shm.config",
    "pparallel_torch.config",
    "pparallel_zmq.config",
)
MEMBERS = (
    "numpy",
    "torch._dynamo",  # as the first optimizer that is made would do
    "torch.distributed.tensor",  # as the first torch.testing.assert_close() would
    "pparallel.builder.runtime",
    "pparallel.compat.machin.distributed",
    "pparallel.testing.collective",
    "pparallel.testing.ordered_server",
    "pparallel.testing.reducer",
    "pparallel.testing.transport",
    "pparallel_ipc.transport",
    "pparallel_reducers.all_reduce",
    "pparallel_reducers.diloco",
    "pparallel_reducers.grad_server.reducer",
    "pparallel_reducers.model_server",
    "pparallel_reducers.local",
    "pparallel_serializers.dill",
    "pparallel_servers.hosted",
    "pparallel_shm.collective",
    "pparallel_torch.collective.gloo",
    "pparallel_torch.rpc.transport",
    "pparallel_torch.torchrun.agent",
    "pparallel_zmq.transport",
    "crew_programs",
)
_TORCH = {*MEMBERS, "torch", "launched_patterns"} - {*LIGHT}
_RAY = "pparallel_ray."  #: a plugin's modules, which a job preloads where the plugin is installed


def shared(preload: Sequence[str]) -> tuple[str, ...]:
    """Return what the fork server for *preload* imports."""
    modules = {each for each in preload if not each.startswith(_RAY)}
    if not modules <= {*LIGHT, *_TORCH}:
        return tuple(preload)
    return (*LIGHT, *MEMBERS, "launched_patterns", "one_thread") if modules & _TORCH else LIGHT
