"""Components are handed parts, which open before them and close after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import pytest
from typing_extensions import Buffer, override

import pparallel
from pparallel.errors import ConfigError
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.interfaces.serializer import Serializer, SerializerConfig
from pparallel.plugin import Backend, hookimpl
from pparallel.registry import Registry
from pparallel.runtime.streams import Streams
from pparallel_local import ThreadPoolConfig
from pparallel_local.thread_pool import ThreadPool
from pparallel_servers.memory import MemoryOrderedServer

if TYPE_CHECKING:
    from pparallel.runtime.member import Member

log: list[str] = []


class ShelfConfig(OrderedServerConfig, frozen=True):
    backend: Literal["shelf"] = "shelf"
    serializer: SerializerConfig | None = None
    pool: PoolConfig | None = None


class Shelf(MemoryOrderedServer):
    """Stands for an ordered server: only its life matters here."""

    def __init__(
        self,
        config: ShelfConfig,
        *,
        member: Member,
        serializer: Serializer,
        pool: Pool,
        name: str,
        streams: Streams,
    ) -> None:
        self.parts = (serializer, pool, name)
        self.streams = streams

    @override
    def open(self) -> None:
        log.append("shelf opened")
        assert self.parts[1].apply(abs, (-1,)) == 1

    @override
    def close(self) -> None:
        log.append("shelf closed")


class CircleConfig(PoolConfig, frozen=True):
    backend: Literal["circle"] = "circle"


class Circle(ThreadPool):
    def __init__(self, config: CircleConfig, *, member: Member, ordered_server: Shelf) -> None:
        raise AssertionError


class LoggedPoolConfig(PoolConfig, frozen=True):
    backend: Literal["logged"] = "logged"


class LoggedPool(ThreadPool):
    @override
    def open(self) -> None:
        log.append("pool opened")
        super().open()

    @override
    def join(self) -> None:
        super().join()
        log.append("pool closed")


class UpperConfig(SerializerConfig, frozen=True):
    backend: Literal["upper"] = "upper"


class Upper(Serializer):
    def __init__(self, config: UpperConfig, *, member: Member) -> None:
        pass

    @override
    def dumps(self, obj: object) -> list[Buffer]:
        return [str(obj).upper().encode()]

    @override
    def loads(self, buffers: Sequence[Buffer]) -> object:
        return bytes(buffers[0]).decode()


def record(interface: str, name: str, cls: str) -> Backend:
    at = f"{__name__}:{cls}"
    return Backend(interface, name, config=f"{at}Config", target=at)


class Plugin:
    @hookimpl
    def pparallel_backends(self) -> list[Backend]:
        return [
            record("ordered_server", "shelf", "Shelf"),
            record("pool", "logged", "LoggedPool"),
            record("pool", "circle", "Circle"),
            record("serializer", "upper", "Upper"),
        ]


@pytest.fixture
def registry() -> Registry:
    log.clear()
    return Registry(Plugin())


LIFE = ["pool opened", "shelf opened", "shelf closed", "pool closed"]


def test_parts_are_shared_with_the_runtime_and_open_first(registry: Registry) -> None:
    raw = {"ordered_server": {"backend": "shelf"}, "pool": {"backend": "logged"}, "seed": 1}
    with pparallel.build(pparallel.load(raw, registry=registry), registry=registry) as rt:
        shelf = rt["ordered_server"]
        assert shelf.parts == (rt.serializer, rt.pool, "ordered_server")
        assert shelf.streams.seed == rt.streams.sub("ordered_server").seed != rt.streams.seed
    assert log == LIFE


def test_a_part_with_a_config_of_its_own_is_owned(registry: Registry) -> None:
    raw = {"backend": "shelf", "pool": {"backend": "logged"}, "serializer": {"backend": "upper"}}
    config = pparallel.load({"ordered_server": raw}, registry=registry)
    with pparallel.build(config, registry=registry) as rt:
        shelf = rt["ordered_server"]
        assert shelf.parts[1] is not rt.pool
        assert shelf.parts[0].dumps("a") == [b"A"]
    assert log == LIFE
    log.clear()
    alone = pparallel.build(pparallel.load(ShelfConfig, raw, registry=registry), registry=registry)
    assert log == []
    with alone:
        assert log == LIFE[:2]
    assert log == LIFE


def test_ready_parts_are_used_and_left_open(registry: Registry) -> None:
    with pparallel.build(ThreadPoolConfig(size=1)) as pool:
        with pparallel.build(ShelfConfig(), registry=registry, pool=pool) as shelf:
            assert shelf.parts[1] is pool  # type: ignore[attr-defined]
        assert pool.apply(abs, (-2,)) == 2
    with pytest.raises(TypeError, match="takes no part 'reducer'; it takes: name, pool"):
        pparallel.build(ShelfConfig(), registry=registry, reducer=None)
    for part in (None, ThreadPool, UpperConfig()):
        with pytest.raises(ConfigError, match=r"^pool: a Pool, the name of a backend, or .*, not "):
            pparallel.build(ShelfConfig(), registry=registry, pool=part)


@pytest.mark.parametrize("part", ["logged", {"backend": "logged"}, LoggedPoolConfig()], ids=str)
def test_parts_that_are_described_are_built_and_owned(registry: Registry, part: object) -> None:
    with pparallel.build(ShelfConfig(), registry=registry, pool=part):
        assert log == LIFE[:2]
    assert log == LIFE


def test_components_that_need_one_another_are_refused(registry: Registry) -> None:
    raw = {"ordered_server": {"backend": "shelf"}, "pool": {"backend": "circle"}}
    with (
        pparallel.build(pparallel.load(raw, registry=registry), registry=registry) as rt,
        pytest.raises(ConfigError, match="ordered_server needs pool needs ordered_server"),
    ):
        _ = rt.ordered_server
