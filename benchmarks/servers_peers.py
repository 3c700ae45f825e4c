"""What others keep values in, each set up as its documentation has it best; and the floor."""

from __future__ import annotations

import importlib.util
import mmap
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.away import started
from benchmarks.crews import Crew, crew
from benchmarks.rpc_peers import joined
from benchmarks.servers_parts import Store
from pparallel.testing.patience import until

if TYPE_CHECKING:
    import torch

# -- a dict behind torch.distributed.rpc ---------------------------------------------------------

_SERVER = "server"
_kept: dict[str, Any] = {}


@contextmanager
def torch_dict(clients: int) -> Iterator[Crew]:
    """Give so many processes that each have a key of a dict in one more process."""
    names = (_SERVER, *(f"client-{each}" for each in range(clients)))
    with (
        TemporaryDirectory() as folder,
        started("benchmarks.rpc_peers:be_there", pickle.dumps((folder, _SERVER, names))) as server,
        crew(
            [partial(_torch_store, folder, name, names) for name in names[1:]],
            [server],
            polling=True,
        ) as found,
    ):
        yield found


@contextmanager
def _torch_store(folder: str, name: str, names: tuple[str, ...]) -> Iterator[Store]:
    rpc = joined(folder, name, names)
    yield Store(
        lambda value: rpc.rpc_sync(_SERVER, _keep, args=(name, value)),
        lambda _: rpc.rpc_sync(_SERVER, _give, args=(name,)),
    )
    rpc.shutdown()


def _keep(key: str, value: object) -> None:
    _kept[key] = value


def _give(key: str) -> object:
    return _kept[key]


# -- redis -----------------------------------------------------------------------------------------


def no_redis() -> str:
    """Return why redis cannot be measured here; nothing if it can."""
    if shutil.which("redis-server") is None:
        return "the program redis-server is not installed"
    if importlib.util.find_spec("redis") is None:
        return "the package redis is not installed"
    return ""


@contextmanager
def redis_server(
    store: Callable[[str, int], AbstractContextManager[Store]], clients: int
) -> Iterator[Crew]:
    """Give so many processes that each use a server on a Unix socket, which writes no file."""
    with TemporaryDirectory() as folder:
        socket = f"{folder}/socket"
        options = ["--port", "0", "--unixsocket", socket, "--dir", folder]
        command = ["redis-server", *options, "--save", "", "--appendonly", "no"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                until(Path(socket).exists, "redis-server did not open its socket")
                with crew([partial(store, socket, each) for each in range(clients)]) as found:
                    yield found
            finally:
                server.terminate()


@contextmanager
def redis_states(socket: str, client: int) -> Iterator[Store]:
    """Keep each tensor of a state under a key of its own; all of them travel at once."""
    import redis
    import torch

    like: dict[str, torch.Tensor] = {}
    with redis.Redis(unix_socket_path=socket) as connection:

        def push(state: dict[str, torch.Tensor]) -> None:
            like.update(state)
            pipeline = connection.pipeline(transaction=False)
            for name, tensor in state.items():
                pipeline.set(f"{client}/{name}", tensor.numpy().data.cast("B"))
            pipeline.execute()

        def pull(_: object) -> dict[str, torch.Tensor]:
            values = connection.mget([f"{client}/{name}" for name in like])
            return {
                name: torch.frombuffer(bytearray(value), dtype=each.dtype).view(each.shape)
                for (name, each), value in zip(like.items(), values, strict=True)
            }

        yield Store(push, pull)


@contextmanager
def redis_values(socket: str, client: int) -> Iterator[Store]:
    """Keep bytes under one key."""
    import redis

    key = str(client)
    with redis.Redis(unix_socket_path=socket) as connection:
        yield Store(lambda value: _set(connection, key, value), lambda _: connection.get(key))


def _set(connection: Any, key: str, value: bytes) -> None:
    connection.set(key, value)


# -- the floor -------------------------------------------------------------------------------------


def copies(clients: int) -> AbstractContextManager[Crew]:
    """Give processes that copy a state into shared memory that is warm, and out of it again."""
    return crew([_copying] * clients)


@contextmanager
def _copying() -> Iterator[Store]:
    views: dict[str, torch.Tensor] = {}

    def push(state: dict[str, torch.Tensor]) -> None:
        if not views:
            views.update(_shared_like(state))
        for name, tensor in state.items():
            views[name].copy_(tensor)

    def pull(into: dict[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
        if into is None:
            return {name: view.clone() for name, view in views.items()}
        for name, view in views.items():
            into[name].copy_(view)
        return into

    yield Store(push, pull)


def _shared_like(state: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Lay the tensors of a state out in one piece of shared memory."""
    import torch

    flat = torch.frombuffer(
        mmap.mmap(-1, sum(each.nbytes for each in state.values())), dtype=torch.float32
    )
    parts = flat.split([each.numel() for each in state.values()])
    for (name, tensor), part in zip(state.items(), parts, strict=True):
        yield name, part.view(tensor.shape)
