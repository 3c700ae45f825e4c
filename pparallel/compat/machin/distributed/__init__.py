"""``machin.parallel.distributed``: worlds of named processes, their groups, and their calls.

The modules, bottom-up: ``places`` and ``settings`` (what a member is told), ``cards`` (what it says
of itself), ``folder`` and ``meeting`` (how members on one machine find one another), ``joining``,
``current`` (the world of this process), ``calls`` and ``script_functions`` (what travels),
``rpc_group`` and ``collective_group``, and ``world``.
"""

from pparallel.compat.machin.distributed.calls import RpcException
from pparallel.compat.machin.distributed.collective_group import CollectiveGroup
from pparallel.compat.machin.distributed.current import (
    get_cur_name,
    get_cur_rank,
    get_world,
    is_world_initialized,
)
from pparallel.compat.machin.distributed.rpc_group import RpcGroup
from pparallel.compat.machin.distributed.world import World

__all__ = [
    "CollectiveGroup",
    "RpcException",
    "RpcGroup",
    "World",
    "get_cur_name",
    "get_cur_rank",
    "get_world",
    "is_world_initialized",
]
