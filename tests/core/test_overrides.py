"""A member overrides sections of its job; all else is refused before any member starts."""

from __future__ import annotations

from typing import Any

import pytest

import pparallel
from pparallel.errors import ConfigError, UnknownBackendError
from pparallel.interfaces.pool import PoolConfig
from pparallel.plugin import Backend, hookimpl
from pparallel.registry import Registry


def never(_: pparallel.Runtime) -> None:
    raise AssertionError("a member has started")


def job(**override: Any) -> dict[str, Any]:
    return {"members": ["a", {"name": "b", "override": override}], "seed": 1}


OF_THE_JOB = r"it is the same in all members; a member may override close_timeout, .*, transport"
REFUSED = [
    ({key: value}, rf"^members\.b\.override\.{key}: {OF_THE_JOB}$")
    for key, value in {
        "seed": 3,
        "target": "train:main",
        "args": [1],
        "members": 3,
        "directory": "mods",
        "launcher": {"backend": "process"},
    }.items()
]
REFUSED += [
    ({"pol": {}}, r"^members\.b\.override\.pol: unknown key 'pol'\. Did you mean 'pool'\?$"),
    ({"pool": {"sise": 1}}, r"^members\.b\.override\.pool\.sise: unknown key 'sise'"),
    ({"close_timeout": -1}, r"^members\.b\.override\.close_timeout: .*, not -1$"),
    (
        {"collective": {"backend": "gloo"}},
        r"^members\.b\.override\.collective\.backend: 'gloo' works among",
    ),
    (
        {"transport": {"backend": "ipc"}},
        r"^members\.b\.override\.transport\.backend: .* give the job a section transport too$",
    ),
    (
        {"seed": 3, "args": []},
        r"^2 problems:\n  members\.b\.override\.seed: .*\n  members\.b\.override\.args: ",
    ),
]


@pytest.mark.parametrize(("override", "message"), REFUSED, ids=[str(each) for each, _ in REFUSED])
def test_refused(override: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pparallel.load(job(**override))
    with pytest.raises(ConfigError, match=message):
        pparallel.launch(pparallel.RuntimeConfig(**job(**override)), never)


def test_one_transport_for_all() -> None:
    with pytest.raises(
        ConfigError, match=r"^members\.b\.override\.transport\.backend: .*, ipc, not local"
    ):
        pparallel.load({**job(transport={"backend": "local"}), "transport": {"backend": "ipc"}})
    pparallel.load({**job(transport={"timeout": 1}), "transport": {"backend": "ipc"}})


def test_every_member_is_named() -> None:
    wrong = {"pool": {"size": 0}, "close_timeout": "x"}
    raw = {"members": [{"name": name, "override": wrong} for name in ("a", "b")]}
    with pytest.raises(ConfigError) as caught:
        pparallel.load(raw)
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 problems:"
    places = [line.split(": ")[0].strip() for line in lines[1:]]
    assert sorted(places) == [
        f"members.{name}.override.{key}" for name in "ab" for key in ("close_timeout", "pool.size")
    ]


def test_an_unknown_backend() -> None:
    with pytest.raises(UnknownBackendError, match="Did you mean 'thread'") as caught:
        pparallel.load(job(pool={"backend": "thred"}))
    assert caught.value.path == "members.b.override.pool.backend"


def test_options_that_differ() -> None:
    def options(rt: pparallel.Runtime) -> tuple[Any, ...]:
        config = rt.config
        assert config.transport is not None
        return rt.pool.size(), config.close_timeout, config.transport.handler_threads

    raw = job(pool={"size": 2}, close_timeout=9, transport={"handler_threads": 3})
    raw |= {"pool": {"size": 1}, "transport": {"handler_threads": 2}}
    assert pparallel.launch(raw, options) == [(1, None, 2), (2, 9, 3)]


class ShelfConfig(PoolConfig, frozen=True):
    backend: str = "shelf"
    rooms: int = 1


class Plugin:
    @hookimpl
    def pparallel_backends(self) -> list[Backend]:
        config = f"{__name__}:ShelfConfig"
        return [Backend("pool", "shelf", config=config, target=f"{__name__}:Shelf")]


def test_backends_of_the_registry_in_use() -> None:
    config = pparallel.load(job(pool={"backend": "shelf", "rooms": 2}), registry=Registry(Plugin()))
    assert config.of_member("a").pool is None
    with pytest.raises(ConfigError, match=r"pool\.backend: no pool backend 'shelf'"):
        pparallel.load(job(pool={"backend": "shelf"}))
    assert config.of_member("b", Registry(Plugin())).pool == ShelfConfig(rooms=2)
