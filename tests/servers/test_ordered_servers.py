from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import pytest
import torch
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, ConfigError, PeerLostError
from pparallel.interfaces.ordered_server import Found, OrderedServer, OrderedServerConfig
from pparallel.runtime.client_server import ClientOrderedServer, ServerClient
from pparallel.runtime.rpc import context
from pparallel.runtime.versioned_store import VersionedStore, Waiter
from pparallel.testing import OrderedServerSuite
from pparallel.testing.history import Operation, Unknown, check
from pparallel.testing.ordered_server.order import OrderTests
from pparallel.testing.ordered_server.waiting import WaitTests
from pparallel.testing.patience import PATIENCE, until
from pparallel_local import LocalTransportConfig
from pparallel_serializers import PickleSerializerConfig
from pparallel_servers import HostedOrderedServerConfig, MemoryOrderedServerConfig
from pparallel_servers.clients import HostClient

if TYPE_CHECKING:
    from pparallel.builder import Runtime


class TestMemoryOrderedServer(OrderedServerSuite):
    sequences: ClassVar[int] = 15

    @pytest.fixture
    @override
    def config(self) -> OrderedServerConfig:
        return MemoryOrderedServerConfig()


class TestHostedOrderedServer(OrderedServerSuite):
    sequences: ClassVar[int] = 15

    @pytest.fixture
    @override
    def config(self) -> OrderedServerConfig:
        return HostedOrderedServerConfig()


class TestHostedByAnother(OrderTests):
    """The first member is not the host."""

    test_one_push_wakes_the_waiters_of_all_members = (
        WaitTests.test_one_push_wakes_the_waiters_of_all_members
    )

    @pytest.fixture
    @override
    def config(self) -> OrderedServerConfig:
        return HostedOrderedServerConfig()

    @override
    def launch(
        self,
        launcher: Any,
        config: OrderedServerConfig,
        size: int,
        target: Any,
        *args: Any,
        leaves: bool = False,
    ) -> list[Any]:
        last = config.model_copy(update={"host": f"member-{size - 1}"})
        return super().launch(launcher, last, size, target, *args, leaves=leaves)


_servers: dict[str, OrderedServer] = {}


def wait_for(key: str, version: int) -> Found | None:
    """Wait in the member that is called: what a user function may do."""
    return _servers[context.endpoint().name].wait(key, version, timeout=30)


def hundred_waiters(rt: Runtime) -> int:
    _servers[rt.name] = rt.ordered_server
    group = rt.group()
    assert rt.rank != 0 or rt.ordered_server.push("go", 0, 0, None)
    group.barrier()
    woken = 0
    if rt.rank == 1:
        calls: list[Future[Any]] = [
            group.rpc_async(to, wait_for, args=("go", 0)) for to in (0, 2) for _ in range(50)
        ]
        assert group.rpc_sync(0, len, args=([1, 2],)) == 2, "the only handler thread is taken"
        assert rt.ordered_server.push("go", 1, 1, 0)
        woken = [call.result() for call in calls].count((1, 1))
    group.barrier()
    return woken


def test_a_hundred_waiters_need_no_threads() -> None:
    config = pparallel.RuntimeConfig(
        members=3,
        transport=LocalTransportConfig(handler_threads=1),
        ordered_server=HostedOrderedServerConfig(),
        reducer={"backend": "local"},
    )
    try:
        assert pparallel.launch(config, hundred_waiters) == [0, 100, 0]
    finally:
        _servers.clear()


def use_after_the_host(rt: Runtime) -> str:
    server, group = rt.ordered_server, rt.group()
    if rt.name == "host":
        assert server.push("k", 1, 1, None)
        group.barrier()
        return "left"
    group.barrier()
    with pytest.raises(PeerLostError, match="'host'") as caught:
        server.wait("k", 1)
    with pytest.raises(PeerLostError, match="'host'"):
        server.pull("k")
    with pytest.raises(PeerLostError, match="'host'"):
        server.push("k", 2, 2, 1)
    return caught.value.peer


def test_a_host_that_is_gone_never_seems_empty() -> None:
    config = pparallel.RuntimeConfig(
        members=["first", {"name": "host", "override": {"close_timeout": 0.05}}, "other"],
        ordered_server=HostedOrderedServerConfig(host="host"),
        reducer={"backend": "local"},
    )
    assert pparallel.launch(config, use_after_the_host) == ["host", "left", "host"]


def give_up_waiting(rt: Runtime) -> int:
    server, group = rt.ordered_server, rt.group()
    if rt.rank == 1:
        assert [server.wait("k", timeout=0.01) for _ in range(5)] == [None] * 5
    group.barrier()
    waiting = 0
    if rt.rank == 0:
        store = server._client._store  # type: ignore[attr-defined]
        until(lambda: not store.waiting(), "a waiter that gave up is kept")
        waiting = store.waiting()
    group.barrier()
    return waiting


def test_a_waiter_that_gave_up_is_forgotten() -> None:
    config = pparallel.RuntimeConfig(
        members=2,
        ordered_server=HostedOrderedServerConfig(),
        reducer={"backend": "local"},
    )
    assert pparallel.launch(config, give_up_waiting) == [0, 0]


def wait_for_ever(rt: Runtime) -> None:
    if rt.rank == 1:
        rt.ordered_server.wait("never", timeout=0.05)
        message = "the first failure"
        raise KeyError(message)
    rt.ordered_server.wait("never")


@pytest.mark.parametrize("backend", ["memory", "hosted"])
def test_waiters_wake_when_the_job_ends(backend: str) -> None:
    config = pparallel.RuntimeConfig(
        members=3, ordered_server={"backend": backend}, reducer={"backend": "local"}
    )
    with pytest.raises(KeyError, match="the first failure"):
        pparallel.launch(config, wait_for_ever)


def wait_as_it_closes(server: OrderedServer) -> None:
    assert isinstance(server, ClientOrderedServer)
    opened = server._opened

    def closing() -> ServerClient:
        client = opened()
        server.close()  # as another thread may at this moment
        return client

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(server, "_opened", closing)
        with pytest.raises(ClosedError):
            server.wait("k", timeout=PATIENCE)


def wait_as_they_close(rt: Runtime) -> int:
    rt.group().barrier()
    if rt.rank == 1:
        wait_as_it_closes(rt.ordered_server)
    rt.group().barrier()
    if rt.rank == 0:
        wait_as_it_closes(rt.ordered_server)
    return rt.rank


def test_a_wait_that_comes_after_the_close_it_did_not_see() -> None:
    with pparallel.build(MemoryOrderedServerConfig()) as server:
        wait_as_it_closes(server)
    config = pparallel.RuntimeConfig(
        members=2, ordered_server=HostedOrderedServerConfig(), reducer={"backend": "local"}
    )
    assert pparallel.launch(config, wait_as_they_close) == [0, 1]


class SlowKey(NamedTuple):
    """A key that takes long to be read."""

    name: str

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return read_late, (self.name,)


def read_late(name: str) -> SlowKey:
    threading.Event().wait(0.1)
    return SlowKey(name)


def close_while_a_wait_is_on_its_way(rt: Runtime) -> list[str]:
    server, group, raised = rt.ordered_server, rt.group(), list[str]()

    def wait() -> None:
        try:
            server.wait(SlowKey("k"))
        except ClosedError as error:
            raised.append(str(error))

    group.barrier()
    if rt.rank == 1:
        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        threading.Event().wait(0.02)  # for it to be sent, and not to be read yet
        server.close()
        waiter.join(PATIENCE)
        assert not waiter.is_alive()
    group.barrier()
    return raised


@pytest.mark.parametrize("transport", ["local", "ipc", "zmq"])
def test_a_wait_that_its_host_reads_after_the_close(transport: str) -> None:
    config = pparallel.RuntimeConfig(
        members=2,
        transport={"backend": transport},
        launcher={"backend": "thread"},
        ordered_server=HostedOrderedServerConfig(),
        reducer={"backend": "local"},
    )
    none, (raised,) = pparallel.launch(config, close_while_a_wait_is_on_its_way)
    assert none == []
    assert "closed" in raised


class Interrupted:
    """Stands for a group; a signal's handler raises where it has just sent a request to wait."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def ask_async(self, _: str, key: str, *__: Any, **___: Any) -> Any:
        self.told.append(key)
        if key == "wait":
            raise KeyboardInterrupt
        return Future()


def test_a_wait_that_is_interrupted_as_it_begins_is_withdrawn() -> None:
    group = Interrupted()
    client = HostClient(cast("Any", group), "host", pparallel.build(PickleSerializerConfig()))
    with pytest.raises(KeyboardInterrupt):
        client.wait("k", None, None)
    assert group.told == ["wait", "withdraw"]


def test_a_wait_that_comes_as_its_host_leaves() -> None:
    config = pparallel.RuntimeConfig(
        members=2, ordered_server=HostedOrderedServerConfig(), reducer={"backend": "local"}
    )
    assert pparallel.launch(config, wait_as_the_host_leaves) == [None, "member-0"]


def wait_as_the_host_leaves(rt: Runtime) -> str | None:
    server, group = rt.ordered_server, rt.group()
    if rt.rank == 0:
        store: VersionedStore = server._client._store  # type: ignore[attr-defined]
        wait = store.wait

        def waiting(*asked: Any, **named: Any) -> Waiter:
            server.close()  # its desk has let the wait in, and does not know it yet
            return wait(*asked, **named)

        store.wait = waiting  # type: ignore[method-assign]
    group.barrier()
    lost = None
    if rt.rank == 1:
        with pytest.raises(PeerLostError, match="has left") as caught:
            server.wait("k", timeout=PATIENCE)
        lost = caught.value.peer
    group.barrier()
    return lost


def test_a_host_that_is_no_member() -> None:
    config = pparallel.RuntimeConfig(
        members=["alpha", "beta"],
        ordered_server=HostedOrderedServerConfig(host="betta"),
        reducer={"backend": "local"},
    )
    with pytest.raises(ConfigError, match=r"alpha, beta\. Did you mean 'beta'"):
        pparallel.launch(config, wait_for_ever)


def test_memory_of_two_jobs_is_not_shared() -> None:
    with pparallel.build(MemoryOrderedServerConfig()) as first:
        assert first.push("k", 1, 1, None)
        with pparallel.build(MemoryOrderedServerConfig()) as second:
            assert second.pull("k") is None


def test_use_before_open() -> None:
    server = pparallel.build(HostedOrderedServerConfig())
    with pytest.raises(ClosedError, match="not open"):
        server.pull("k")


@pytest.mark.parametrize("items", [10, 40_000])
def test_what_is_pulled_into_is_known_to_have_changed(items: int) -> None:
    with pparallel.build(MemoryOrderedServerConfig()) as server:
        assert server.push("k", torch.ones(items), 1, None)
        parameter = torch.nn.Parameter(torch.zeros(items))
        loss = (parameter * parameter).sum()
        assert server.pull("k", into=parameter) is not None
        assert parameter.sum() == items
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_pulls_into_memory_of_any_kind() -> None:
    values = torch.arange(80_000.0).view(200, 400)
    targets = [
        torch.zeros(200, 400),
        torch.zeros(400, 200).T,
        torch.zeros(200, 800)[:, ::2],
        torch.zeros(200, 400, dtype=torch.complex64).real,
    ]
    with torch.inference_mode():
        targets.append(torch.zeros(200, 400))
    with pparallel.build(MemoryOrderedServerConfig()) as server:
        assert server.push("k", values, 1, None)
        for target in targets:
            assert server.pull("k", into=target) is not None
            assert torch.equal(target, values)
        with torch.inference_mode():
            small = torch.zeros(3)
        assert server.push("small", torch.ones(3), 1, None)
        assert server.pull("small", into=small) is not None
        assert small.sum() == 3
        assert server.push("turned", values.T, 1, None)
        assert server.pull("turned", into=targets[0].view(400, 200)) is not None
        assert torch.equal(targets[0].view(400, 200), values.T)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("rows", [3, 30_000])
def test_pull_into_what_torch_cannot_fill_copies_nothing(rows: int) -> None:
    freed = torch.zeros(rows, 3)
    freed.untyped_storage().resize_(0)
    refused = {
        r"value\[1\] .*memory was freed": freed,
        r"value\[1\], a Tensor .*strided.*sparse_coo": torch.zeros(rows, 3).to_sparse(),
        r"value\[1\] .*no shape yet": torch.nn.UninitializedParameter(),
        r"value\[1\] .*nested": torch.nested.nested_tensor([torch.zeros(rows, 3)]),
    }
    with pparallel.build(MemoryOrderedServerConfig()) as server:
        assert server.push("k", [torch.ones(3), torch.ones(rows, 3)], 1, None)
        for message, into in refused.items():
            target = torch.zeros(3)
            with pytest.raises(ValueError, match=message):
                server.pull("k", into=[target, into])
            assert target.sum() == 0, "something was copied before the misfit was seen"


def op(name: str, arguments: tuple[Any, ...], result: Any, start: float, end: float) -> Operation:
    return Operation("k", name, arguments, result, start, end)


PUSHED = op("push", ("a", 1, None), True, 0, 1)


@pytest.mark.parametrize(
    "history",
    [
        [PUSHED, op("pull", (None,), ("a", 1), 2, 3)],
        [PUSHED, op("pull", (None,), None, 0.5, 3)],
        [PUSHED, op("pull", (None,), ("a", 1), 0.5, 0.6)],
        [PUSHED, op("push", ("b", 2, 1), True, 0.5, 3), op("push", ("c", 3, 1), False, 0.5, 3)],
        [PUSHED, op("push", ("b", 2, 1), Unknown(), 2, 3), op("pull", (None,), ("b", 2), 8, 9)],
        [PUSHED, op("push", ("b", 2, 1), Unknown(), 2, 3), op("pull", (None,), ("a", 1), 8, 9)],
        [PUSHED, op("wait", (None, 5), ("a", 1), 0, 9), op("versions", (), [1], 2, 3)],
        [PUSHED, op("delete", (), True, 2, 3), op("delete", (), False, 4, 5)],
    ],
)
def test_the_checker_accepts(history: list[Operation]) -> None:
    check(history, depth=1)
    assert history


@pytest.mark.parametrize(
    "history",
    [
        [PUSHED, op("pull", (None,), None, 2, 3)],
        [PUSHED, op("pull", (None,), ("b", 1), 2, 3)],
        [PUSHED, op("push", ("b", 2, None), True, 2, 3)],
        [PUSHED, op("push", ("b", 2, 1), True, 2, 9), op("push", ("c", 3, 1), True, 2, 9)],
        [
            PUSHED,
            op("push", ("b", 2, 1), True, 2, 9),
            op("pull", (None,), ("b", 2), 3, 4),
            op("pull", (None,), ("a", 1), 5, 6),
        ],
        [
            PUSHED,
            op("push", ("b", 2, 1), Unknown(), 2, 3),
            op("pull", (None,), ("b", 2), 5, 6),
            op("pull", (None,), ("a", 1), 7, 8),
        ],
        [PUSHED, op("push", ("b", 2, 1), True, 2, 3), op("pull", (1,), ("a", 1), 4, 5)],
        [PUSHED, op("wait", (None, 0), None, 2, 3)],
        [PUSHED, op("wait", (1, 5), ("a", 1), 2, 3)],
    ],
)
def test_the_checker_refuses(history: list[Operation]) -> None:
    with pytest.raises(AssertionError, match="not linearizable"):
        check(history, depth=1)
