"""What the processes of members are forked with: it would take each of them seconds to import.

All tests name the same, so that one fork server is enough for all that a process of the tests runs.
"""

from __future__ import annotations

MEMBERS = (
    "numpy",
    "torch._dynamo",  # as the first optimizer that is made would do
    "torch.distributed.tensor",  # as the first torch.testing.assert_close() would
    "pparallel.builder.runtime",
    "pparallel.testing.collective",
    "pparallel.testing.ordered_server",
    "pparallel.testing.reducer",
    "pparallel.testing.transport",
    "pparallel_ipc.transport",
    "pparallel_reducers.local",
    "pparallel_serializers.dill",
    "pparallel_servers.hosted",
    "pparallel_torch.collective.gloo",
    "pparallel_torch.rpc.transport",
    "pparallel_zmq.transport",
    "crew_programs",
)
