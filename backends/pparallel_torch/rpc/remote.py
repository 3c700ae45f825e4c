"""What members call in one another by torch RPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.rpc.functions import async_execution

if TYPE_CHECKING:
    from pparallel_torch.rpc.transport import TorchRpcTransport

_here: TorchRpcTransport | None = None  #: the transport of this process, of which there is one


def receive_for(transport: TorchRpcTransport | None) -> None:
    """Hand what arrives from now on to *transport*."""
    global _here
    _here = transport


@async_execution  # type: ignore[untyped-decorator]
def deliver(
    sender: int, number: int, small: bytes, sizes: list[int], large: list[torch.Tensor]
) -> torch.futures.Future[Any]:
    """Hand over a request; the future is of its answer, which nobody waits for here."""
    answer: torch.futures.Future[Any] = torch.futures.Future()
    if _here is not None:  # else it has just been closed, and the sender learns of that
        _here.arrived(sender, number, (small, sizes, large), answer.set_result)
    return answer


def left_out(sender: int, number: int) -> None:
    """Learn that a request could not be sent, for which others may wait."""
    if _here is not None:
        _here.left_out(sender, number)


def ended(name: str, reason: str) -> None:
    """Learn that a member has ended."""
    if _here is not None:
        _here.told(name, reason)


@async_execution  # type: ignore[untyped-decorator]
def left(sender: int, replies: int) -> torch.futures.Future[Any]:
    """Learn that a member leaves; the future is done once all its replies are here."""
    seen: torch.futures.Future[Any] = torch.futures.Future()
    if _here is None:
        seen.set_result(())
    else:
        _here.left(sender, replies, seen.set_result)
    return seen
