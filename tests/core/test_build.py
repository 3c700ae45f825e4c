from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import pparallel
from pparallel.builder.blueprint import Blueprint
from pparallel.errors import ClosedError, ConfigError, UnknownBackendError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.plugin import Backend, hookimpl
from pparallel.registry import Registry
from pparallel_local import SerialPoolConfig, ThreadPoolConfig


def test_no_config_gives_a_working_runtime() -> None:
    with pparallel.build() as rt:
        assert rt.pool.map(abs, [-1, 2]) == [1, 2]
        assert rt.ordered_server.push("k", [1], 1, None)
        assert rt.ordered_server.pull("k") == ([1], 1)
        assert rt.serializer.loads(rt.serializer.dumps({"a": 1})) == {"a": 1}
        assert rt.group().rpc_sync(0, max, args=(1, 2)) == 2
        assert (rt.name, rt.rank, rt.world_size, rt.members) == ("member-0", 0, 1, ["member-0"])
        assert not rt.stopping
        assert rt["pool"] is rt.pool


TEXTS = {
    "job.yaml": "pool: {backend: thread, size: 3}\nseed: 1e2\n",
    "job.toml": 'seed = 100\n[pool]\nbackend = "thread"\nsize = 3\n',
    "job.json": json.dumps({"seed": 100, "pool": {"backend": "thread", "size": 3}}),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(TEXTS[name])
    for source in (path, str(path)):
        config = pparallel.load(source)
        assert config.pool == ThreadPoolConfig(size=3)
        assert config.seed == 100
        assert config.directory == tmp_path
        with pparallel.build(source) as rt:
            assert rt.pool.size() == 3


def test_a_mapping_a_typed_runtime_and_a_typed_component() -> None:
    with pparallel.build({"pool": {"size": 2}}) as rt:
        assert rt.config.pool == ThreadPoolConfig(size=2)
    with pparallel.build(pparallel.RuntimeConfig(pool=SerialPoolConfig())) as rt:
        assert rt.pool.apply(pow, (2, 3)) == 8
    pool: Pool = pparallel.build(ThreadPoolConfig(size=2))
    with pool:
        assert pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]


def test_load_gives_the_config_of_one_component() -> None:
    config = pparallel.load(PoolConfig, {"backend": "serial"})
    assert config == SerialPoolConfig()
    assert pparallel.load(PoolConfig, {"size": 2}) == ThreadPoolConfig(size=2)


def test_sections_may_be_mappings_in_a_typed_config() -> None:
    config = pparallel.RuntimeConfig.model_validate({"pool": {"backend": "serial"}})
    assert config.pool == SerialPoolConfig()


def test_a_config_survives_a_round_trip() -> None:
    raw = {
        "members": ["a", {"name": "b", "override": {"pool": {"size": 5}}}],
        "pool": {"backend": "thread", "size": 2},
        "extra": {"other": {"interface": "pool", "backend": "serial"}},
    }
    config = pparallel.load(raw)
    assert pparallel.load(config) == config
    assert config.of_member("b").pool == ThreadPoolConfig(size=5)
    assert config.of_member("a").pool == ThreadPoolConfig(size=2)
    assert config.extra["other"] == SerialPoolConfig()


def test_overrides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PPARALLEL__POOL__SIZE", "4")
    monkeypatch.setenv("PPARALLEL__SEED", "7")
    path = tmp_path / "job.yaml"
    path.write_text("pool: {backend: thread, size: 3}")
    for source in (path, {"pool": {"size": 3}}, None):
        config = pparallel.load(source)
        assert config.pool == ThreadPoolConfig(size=4)
        assert config.seed == 7
    config = pparallel.load(path, overrides=["pool.size=5"])
    assert config.pool == ThreadPoolConfig(size=5)
    typed = pparallel.RuntimeConfig(pool=ThreadPoolConfig(size=3))
    assert pparallel.load(typed).pool == ThreadPoolConfig(size=3)
    with pytest.raises(ConfigError, match="typed config"):
        pparallel.load(typed, overrides=["seed=1"])


def test_extra_components_are_reached_by_name() -> None:
    raw = {"extra": {"slow": {"interface": "pool", "backend": "thread", "size": 1}}}
    with pparallel.build(raw) as rt:
        assert rt["slow"].size() == 1
        assert rt["slow"] is not rt.pool
        with pytest.raises(KeyError, match="this runtime has"):
            rt["fast"]


def test_use_outside_of_with_is_refused() -> None:
    rt = pparallel.build()
    with pytest.raises(ClosedError, match="not entered"):
        _ = rt.pool
    with pytest.raises(ClosedError, match="not entered"):
        rt.group()
    with rt:
        pool = rt.pool
    with pytest.raises(ClosedError, match="is closed"):
        _ = rt.pool
    with pytest.raises(ClosedError):
        pool.apply(abs, (1,))
    rt.close()
    with pytest.raises(ClosedError, match="build another"):
        rt.open()


def test_an_unknown_backend_says_what_there_is() -> None:
    with pytest.raises(UnknownBackendError, match=r"pool\.backend: .*Did you mean 'thread'\?"):
        pparallel.build({"pool": {"backend": "thred"}})
    with pytest.raises(LookupError):
        pparallel.load(PoolConfig, {"backend": "thred"})


@dataclass(frozen=True)
class Launchers:
    """A plugin with a launcher that names what its members take by default."""

    defaults: Mapping[str, str]

    @hookimpl
    def pparallel_backends(self) -> list[Backend]:
        return [
            Backend(
                "launcher",
                "hill",
                config=f"{__name__}:HillLauncherConfig",
                target="pparallel_local.thread_launcher:ThreadLauncher",
                reach=frozenset({"machines"}),
                defaults=self.defaults,
            )
        ]


class HillLauncherConfig(LauncherConfig, frozen=True):
    """Members on hills.

    Attributes:
        backend: selects this backend.
    """

    backend: Literal["hill"] = "hill"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"members": 2, "launcher": {"backend": "hill"}}, ("torch_rpc", "hosted", "gloo")),
        ({"members": 1, "launcher": {"backend": "hill"}}, ("local", "memory", "local")),
        ({"members": 2}, ("local", "hosted", "local")),
        (
            {"members": 2, "launcher": {"backend": "hill"}, "transport": {"backend": "zmq"}},
            ("zmq", "hosted", "gloo"),
        ),
    ],
)
def test_a_launcher_names_defaults(raw: dict[str, Any], expected: tuple[str, ...]) -> None:
    registry = Registry(Launchers({"transport": "torch_rpc"}))
    blueprint = Blueprint(pparallel.load(raw, registry=registry), registry)
    names = ("transport", "ordered_server", "collective")
    assert tuple(blueprint.component(each).backend for each in names) == expected
