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

from pparallel.errors import ConfigError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Answered = torch.futures.Future[Any]

_rpc: Any = rpc  # what follows is not public
_autograd: Any = autograd

PATIENCE = 5.0  #: seconds that the transport that was here before has to be gone
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_INTERFACE = "TP_SOCKET_IFNAME"  #: where TensorPipe reads on which interface to listen


class _Claim:
    """Who in this process has the agent."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: Callable[[], bool] | None = None

    def take(self, ending: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._holder is None or not self._holder(), PATIENCE)
            if self._holder is not None or _rpc.api._is_current_rpc_agent_set():
                message = (
                    "this process has torch RPC in use already, and torch allows for one only: "
                    "close the other runtime first, or give members processes of their own"
                )
                raise ConfigError(message, path="transport.backend")
            self._holder = ending

    def give_back(self) -> None:
        with self._changed:
            self._holder = None
            self._changed.notify_all()


_claim = _Claim()


def claim(ending: Callable[[], bool]) -> None:
    """Reserve this process's agent.

    Args:
        ending: tells others that wait for it whether waiting is of use.

    Raises:
        ConfigError: it is somebody else's.
    """
    _claim.take(ending)


def give_back() -> None:
    """Undo :func:`claim`."""
    _claim.give_back()


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

    def call(
        self, rank: int, function: Callable[..., Any], *args: Any
    ) -> torch.futures.Future[Any]:
        """Call *function*, which the other side imports, without a time limit."""
        answered: Answered = rpc.rpc_async(_name(rank), function, args=args, timeout=0)
        return answered

    def ping(self, rank: int) -> Answered:
        """Ask for a sign of life; the other side's Python has no part in giving it."""
        answered: Answered = rpc.rpc_async(_name(rank), torch.add, args=(self._probe, 1), timeout=0)
        return answered

    def close(self) -> None:
        """End torch's threads; whatever is underway fails."""
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
