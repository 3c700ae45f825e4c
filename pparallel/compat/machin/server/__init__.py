"""``machin.parallel.server``: an ordered server, and two parameter servers that stand on one."""

from pparallel.compat.machin.server.grad_server import PushPullGradServer, PushPullGradServerImpl
from pparallel.compat.machin.server.model_server import (
    PushPullModelServer,
    PushPullModelServerImpl,
)
from pparallel.compat.machin.server.ordered_server import (
    OrderedServerBase,
    OrderedServerSimple,
    OrderedServerSimpleImpl,
)

__all__ = [
    "OrderedServerBase",
    "OrderedServerSimple",
    "OrderedServerSimpleImpl",
    "PushPullGradServer",
    "PushPullGradServerImpl",
    "PushPullModelServer",
    "PushPullModelServerImpl",
]
