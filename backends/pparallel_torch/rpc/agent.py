"""torch's RPC agent, of which a process has one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import autograd, rpc
from torch.distributed.rpc.functions import async_execution

from pparallel.errors import ConfigError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from pparallel_torch.rpc.transport import TorchRpcTransport

Done = torch.futures.Future[Any]

_rpc: Any = rpc  # what follows is not public
_autograd: Any = autograd

PATIENCE = 5.0  #: seconds in which a transport that is closing gives the agent back
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_INTERFACE = "TP_SOCKET_IFNAME"  #: where TensorPipe reads on which interface to listen


_changed = threading.Condition()
_holder: TorchRpcTransport | None = None  #: the transport that has the agent


def claim(holder: TorchRpcTransport) -> None:
    """Reserve this process's agent, and hand what arrives to *holder*.

    Raises:
        ConfigError: another transport or the program itself has it.
    """
    global _holder
    with _changed:
        _changed.wait_for(lambda: _holder is None or not _holder.is_closing, PATIENCE)
        if _holder is not None or _rpc.api._is_current_rpc_agent_set():
            message = (
                "this process has torch RPC in use already, and torch allows for one only: "
                "close the other runtime first, or give members processes of their own"
            )
            raise ConfigError(message, path="transport.backend")
        _holder = holder


def give_back(holder: TorchRpcTransport) -> None:
    """Undo :func:`claim`, if *holder* has the agent."""
    global _holder
    with _changed:
        if _holder is holder:
            _holder = None
            _changed.notify_all()


@async_execution  # type: ignore[untyped-decorator]
def deliver(*message: Any) -> Done:
    """Take a message: other members call it here. The answer is nothing, or a message back."""
    answer: Done = torch.futures.Future()
    holder = _holder
    if holder is None:  # it has just been closed, which the sender learns
        answer.set_result(None)
    else:
        holder.arrived(answer, *message)
    return answer


class Agent:
    """Calls functions in the processes of other members, by their ranks."""

    def __init__(
        self, store: Store, rank: int, size: int, *, threads: int, patience: float, loopback: bool
    ) -> None:
        """Start to listen, and wait until all others do; it needs :func:`claim`.

        torch's own ``init_rpc`` makes a process group besides, for the devices of the members: it
        would listen on more ports, and is not needed, since all that is sent is on the CPU.

        Raises:
            RuntimeError: the others were not there within *patience* seconds.
        """
        options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=threads, rpc_timeout=patience)
        with suppress(RuntimeError):  # an earlier job of this process had another rank
            _autograd._init(rank)
        with _listening_on(_LOOPBACK if loopback else None):
            agent = _rpc.TensorPipeAgent(store, _name(rank), rank, size, options, {}, [])
        _rpc.api._init_rpc_states(agent)
        self._probe = torch.zeros(1)

    def call(self, rank: int, function: Callable[..., Any], *args: Any, timeout: float = 0) -> Done:
        """Call *function*, which the other side imports, within *timeout* seconds; 0: no limit."""
        done: Done = rpc.rpc_async(_name(rank), function, args=args, timeout=timeout)
        return done

    def ping(self, rank: int, timeout: float = 0) -> Done:
        """Ask for a sign of life; the other side's Python has no part in giving it."""
        return self.call(rank, torch.add, self._probe, 1, timeout=timeout)

    def close(self) -> None:
        """End torch's threads; calls that are under way fail."""
        rpc.shutdown(graceful=False)


def _name(rank: int) -> str:
    return f"m{rank}"


@contextmanager
def _listening_on(interface: str | None) -> Iterator[None]:
    """Let TensorPipe listen on an interface; ``None``: where it would."""
    if interface is None:
        yield
        return
    before = os.environ.get(_INTERFACE)
    os.environ[_INTERFACE] = interface
    try:
        yield
    finally:
        if before is None:
            del os.environ[_INTERFACE]
        else:
            os.environ[_INTERFACE] = before
