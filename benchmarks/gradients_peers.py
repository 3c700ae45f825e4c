"""Other ways to average the gradients of four processes, each as its documentation has it."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, distributed
from torch.distributed import rpc
from torch.futures import Future
from torch.nn import Module

from benchmarks.away import started
from benchmarks.crews import Crew, crew
from benchmarks.gradients_parts import MEMBERS, PRELOAD, Trainer, model, optimizer
from benchmarks.rpc_peers import joined

# -- a parameter server on torch.distributed.rpc -------------------------------------------------

_SERVER = "server"


class _ParameterServer:
    """Sums gradients, and steps the optimizer on the mean once all are there.

    Source: PyTorch's tutorial on batch RPC processing (``BatchUpdateParameterServer``).
    """

    def __init__(self, megabytes: int) -> None:
        self._model = model(megabytes)
        self._optimizer = optimizer(self._model)
        self._lock = threading.Lock()
        self._came = 0
        self._new: Future[list[Tensor]] = Future()

    def update(self, gradients: list[Tensor]) -> Future[list[Tensor]]:
        """Take one member's gradients; the new parameters come when all have."""
        with self._lock:
            found = self._new
            for parameter, gradient in zip(self._model.parameters(), gradients, strict=True):
                assert parameter.grad is not None
                parameter.grad += gradient
            self._came += 1
            if self._came == MEMBERS:
                self._step()
        return found

    def _step(self) -> None:
        for parameter in self._model.parameters():
            assert parameter.grad is not None
            parameter.grad /= MEMBERS
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        self._new.set_result([each.detach() for each in self._model.parameters()])
        self._came, self._new = 0, Future()


_parameter_server: _ParameterServer


@contextmanager
def torch_rpc(megabytes: int) -> Iterator[Crew]:
    """Give four processes whose gradients go to a fifth."""
    names = (_SERVER, *(f"trainer-{each}" for each in range(MEMBERS)))
    with TemporaryDirectory() as folder:
        payload = pickle.dumps((folder, names, megabytes))
        opened = [partial(_rpc_trainer, folder, rank, names, megabytes) for rank in range(MEMBERS)]
        with (
            started("benchmarks.gradients_peers:_serve", payload, preload=PRELOAD) as server,
            crew(opened, [server], polling=True, preload=PRELOAD) as found,
        ):
            yield found


def _serve(payload: bytes, _: Sequence[int]) -> None:
    global _parameter_server
    folder, names, megabytes = pickle.loads(payload)
    _parameter_server = _ParameterServer(megabytes)
    joined(folder, _SERVER, names).shutdown()


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _update(gradients: list[Tensor]) -> Future[list[Tensor]]:
    return _parameter_server.update(gradients)


@contextmanager
def _rpc_trainer(folder: str, rank: int, names: Sequence[str], megabytes: int) -> Iterator[Trainer]:
    end = joined(folder, names[rank + 1], names)
    trained = model(megabytes)

    def train() -> None:
        gradients = [each.grad for each in trained.parameters()]
        new = end.rpc_sync(_SERVER, _update, args=(gradients,))
        for parameter, tensor in zip(trained.parameters(), new, strict=True):
            parameter.data = tensor

    yield Trainer(rank, trained, train)
    end.shutdown()


# -- gloo ------------------------------------------------------------------------------------------


@contextmanager
def gloo(reduce: Callable[[Module], Callable[[], None]], megabytes: int) -> Iterator[Crew]:
    """Give four processes that each step their own optimizer on the mean that *reduce* makes."""
    with TemporaryDirectory() as folder:
        opened = [
            partial(_gloo_trainer, folder, rank, reduce, megabytes) for rank in range(MEMBERS)
        ]
        with crew(opened, preload=PRELOAD) as found:
            yield found


@contextmanager
def _gloo_trainer(
    folder: str, rank: int, reduce: Callable[[Module], Callable[[], None]], megabytes: int
) -> Iterator[Trainer]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=MEMBERS
    )
    trained = model(megabytes)
    average, step = reduce(trained), optimizer(trained).step

    def train() -> None:
        average()
        step()

    yield Trainer(rank, trained, train)
    distributed.barrier()
    distributed.destroy_process_group()


def coalesced(trained: Module) -> Callable[[], None]:
    """Return what averages 60 gradients by one call."""

    def average() -> None:
        gradients = [each.grad for each in trained.parameters() if each.grad is not None]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.distributed.all_reduce_coalesced`")
            distributed.all_reduce_coalesced(gradients)
        torch._foreach_div_(gradients, MEMBERS)

    return average


def flat(trained: Module) -> Callable[[], None]:
    """Return what averages one buffer, of which the gradients are views, as DDP has them."""
    parameters = list(trained.parameters())
    buffer = torch.zeros(sum(each.numel() for each in parameters))
    parts = buffer.split([each.numel() for each in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view(parameter.shape)

    def average() -> None:
        distributed.all_reduce(buffer)
        buffer.div_(MEMBERS)

    return average
