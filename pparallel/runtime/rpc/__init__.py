"""RPC above any transport: groups, references, directory, barrier, back-pressure."""

from pparallel.runtime.rpc.future import RpcFuture
from pparallel.runtime.rpc.group import RpcGroup
from pparallel.runtime.rpc.refs import RemoteRef
from pparallel.runtime.rpc.service import Reply, Request, Service

__all__ = ["RemoteRef", "Reply", "Request", "RpcFuture", "RpcGroup", "Service"]
