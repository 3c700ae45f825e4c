"""The peers of our remote calls, each set up as its documentation has it best.

Each has a server in another process, and yields what calls it.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.managers import BaseManager
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any

from benchmarks import tasks
from benchmarks.away import started
from benchmarks.calls import IN_FLIGHT, METHODS, Caller, Function, in_flight
from benchmarks.peers import fork_server

if TYPE_CHECKING:
    import zmq

_NAMES = _CALLING, _CALLED = "calling", "called"
_TORCH = "benchmarks.rpc_peers:be_there"
_END = b""

# -- torch.distributed.rpc ---------------------------------------------------------------------


@contextmanager
def torch_rpc() -> Iterator[Caller]:
    """Call by ``torch.distributed.rpc``: a process may be an end of it once in its life."""
    with (
        TemporaryDirectory() as folder,
        # A fork, for this process was forked with torch loaded and has no threads yet.
        started(_TORCH, pickle.dumps((folder, _CALLED, _NAMES)), method="fork"),
    ):
        rpc = joined(folder, _CALLING, _NAMES)
        made = rpc.remote(_CALLED, tasks.Station)
        yield Caller(
            lambda function, argument: rpc.rpc_sync(_CALLED, function, args=(argument,)),
            lambda function, arguments: in_flight(
                lambda each: rpc.rpc_async(_CALLED, function, args=(each,)), arguments
            ),
            # It knows no other objects than those of references.
            methods=dict.fromkeys(METHODS, lambda number: made.rpc_sync().no_op(number)),
        )
        rpc.shutdown()


def torch_job() -> int:
    """Have two processes meet by ``torch.distributed.rpc`` and end; return how many did."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        for name in _NAMES:
            stack.enter_context(started(_TORCH, pickle.dumps((folder, name, _NAMES))))
    return len(_NAMES)


def be_there(payload: bytes, _: Sequence[int]) -> None:
    """Be an end until the others shut down too."""
    joined(*pickle.loads(payload)).shutdown()


def joined(folder: str, name: str, names: Sequence[str]) -> ModuleType:
    """Be one of the ends of these names; they meet in a file."""
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/meeting")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)
        rpc.init_rpc(
            name, rank=names.index(name), world_size=len(names), rpc_backend_options=options
        )
    return rpc


# -- multiprocessing.managers ------------------------------------------------------------------


class _Service:
    """What the manager's process keeps: methods with the names of the tasks."""

    no_op = staticmethod(tasks.no_op)
    echo = staticmethod(tasks.echo)


class _Manager(BaseManager):
    pass


_Manager.register("service", _Service)


@contextmanager
def manager_proxy() -> Iterator[Caller]:
    """Call the methods of a ``multiprocessing.managers`` proxy."""
    with _Manager(ctx=fork_server("numpy", __name__)) as manager:
        service: Any = manager.service()  # type: ignore[attr-defined]
        yield Caller(
            lambda function, argument: getattr(service, function.__name__)(argument), arrays=True
        )


# -- pyzmq -------------------------------------------------------------------------------------


@contextmanager
def zmq_echo() -> Iterator[Caller]:
    """Call by pickles of a name and arguments, from a DEALER socket to a ROUTER socket."""
    import zmq

    with TemporaryDirectory() as folder:
        address = f"ipc://{folder}/socket"
        with (
            started("benchmarks.rpc_peers:_serve_zmq", address.encode()),
            zmq.Context() as context,
            context.socket(zmq.DEALER) as socket,
        ):
            socket.linger = 1000
            socket.connect(address)

            def send(function: Function, argument: object) -> None:
                _send(socket, [], (function.__name__, (argument,)))

            def call(function: Function, argument: object) -> Any:
                send(function, argument)
                return _received(socket)

            def many(function: Function, arguments: Any) -> list[Any]:
                results, waiting = [], 0
                for each in arguments:
                    if waiting == IN_FLIGHT:
                        results.append(_received(socket))
                        waiting -= 1
                    send(function, each)
                    waiting += 1
                return results + [_received(socket) for _ in range(waiting)]

            yield Caller(call, many, arrays=True)
            socket.send(_END)


def _serve_zmq(payload: bytes, _: Sequence[int]) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 1000
        socket.bind(payload.decode())
        while True:
            client = socket.recv()
            call = _received(socket)
            if call is None:
                return
            name, arguments = call
            _send(socket, [client], getattr(tasks, name)(*arguments))


def _send(socket: zmq.Socket[bytes], head: list[bytes], value: object) -> None:
    """Send one value, what is large in it as frames that are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, 5, buffer_callback=buffers.append)
    if buffers:
        socket.send_multipart([*head, pickled, *(each.raw() for each in buffers)], copy=False)
    else:
        socket.send_multipart([*head, pickled])


def _received(socket: zmq.Socket[bytes]) -> Any:
    """Return one value; None: it was the end."""
    import zmq

    pickled = socket.recv()
    buffers = []
    while socket.getsockopt(zmq.RCVMORE):
        buffers.append(socket.recv(copy=False).buffer)
    return pickle.loads(pickled, buffers=buffers) if pickled != _END else None
