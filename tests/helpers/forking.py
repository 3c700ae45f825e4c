"""A member that forks."""

from __future__ import annotations

import os

from pparallel.builder import Runtime
from pparallel.errors import ClosedError
from pparallel.testing.patience import PATIENCE
from pparallel.testing.transport.called import add


def fork_and_call(rt: Runtime) -> int:
    """Have a forked child try a call and a close; return how it ends."""
    group = rt.group()
    result = group.rpc_sync(1 - rt.rank, add, args=(1, 2))
    assert result == 3
    child = os.fork()
    if not child:
        code = 0
        for use in (lambda: group.rpc_sync(1 - rt.rank, add, args=(1, 2)), rt.close):
            try:
                use()
            except ClosedError:
                code += 7
            except BaseException:  # noqa: BLE001 - a child that is forked ends here
                code += 1
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert group.rpc_sync(1 - rt.rank, add, args=(2, 2)) == 4
    group.barrier(PATIENCE)
    return os.waitstatus_to_exitcode(status)
