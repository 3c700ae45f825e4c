"""What is wrong in a config is refused with the path of the key and what to write instead."""

from __future__ import annotations

import functools
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import pparallel
from pparallel.errors import ConfigError, SerializationError
from pparallel.interfaces.pool import PoolConfig
from pparallel.runtime.events import Event
from pparallel.runtime.member import Member
from pparallel_local import LocalTransportConfig, ThreadPoolConfig

REFUSED = [
    ({"pol": {}}, r"^pol: unknown key 'pol'\. Did you mean 'pool'\?$"),
    ({"pool": {"sise": 2}}, r"^pool\.sise: unknown key 'sise'\. Did you mean 'size'\?$"),
    ({"pool": {"size": "many"}}, r"^pool\.size: a whole number, not 'many'$"),
    ({"pool": {"size": 0}}, r"^pool\.size: a whole number of at least 1, not 0$"),
    ({"pool": [3]}, r"^pool: the name of a backend, a number \(size\), or .*, not \[3\]$"),
    (
        {"pool": {"backend": "thred"}},
        r"^pool\.backend: no pool backend 'thred'\. Did you mean 'thread'\?$",
    ),
    ({"members": 0}, r"members: a job has at least one member, not 0"),
    ({"members": []}, r"members: a job has at least one member"),
    ({"members": ["a", "b", "a"]}, r"members: the name 'a' is given to two members"),
    ({"members": "three"}, r"members: give a number, a list of names, or 'auto', not 'three'"),
    ({"members": [{"nam": "a"}]}, r"^members\.0\.nam: unknown key 'nam'"),
    (
        {"members": [1, "b", None]},
        r"^2 problems:\n  members\.0: a name is text, .*, not 1\n  members\.2: ",
    ),
    ({"extra": {"x": {"backend": "thread"}}}, r"extra\.x: .*interface: one of .*pool"),
    ({"extra": {"x": {"interface": "pol"}}}, r"extra\.x: .*Did you mean 'pool'\?"),
    (
        {"extra": {"x": {"interface": "pool", "backend": "thred"}}},
        r"extra\.x\.backend: .*Did you mean 'thread'\?",
    ),
    ({"extra": {"pool": {"interface": "pool"}}}, r"extra: 'pool' is a section of its own"),
    ({"extra": {"x": {"interface": "transport"}}}, r"^extra\.x: a job has one transport"),
    ({"extra": {"x": LocalTransportConfig()}}, r"^extra\.x: a job has one transport"),
    ({"seed": "x", "close_timeout": -1}, r"(?s)2 problems:.*seed: .*close_timeout: "),
    (
        {"members": 2, "reducer": {"backend": "grad_server", "secondaris": []}},
        r"reducer\.secondaris: unknown key .*Did you mean 'secondaries'\?",
    ),
    (
        {"members": [{"name": "a", "env": {"A": "1"}}, "b"]},
        r"members\.0\.env: .*use launcher: \{backend: process\}",
    ),
    (
        {"members": [{"name": "a", "resources": {"gpu": 1}}, "b"]},
        r"members\.0\.resources: launcher 'thread' places nothing",
    ),
]


@pytest.mark.parametrize(("raw", "message"), REFUSED, ids=[str(raw) for raw, _ in REFUSED])
def test_refused(raw: dict[str, Any], message: str) -> None:
    for how in (pparallel.load, pparallel.build):
        with pytest.raises(ConfigError, match=message):
            how(raw)
    with pytest.raises(ConfigError, match=message):
        pparallel.load(pparallel.RuntimeConfig(**raw))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool: {sise: 2}", r"pool\.sise: unknown key"),
        ("members: 2\ncollective: {backend: gloo}", r"collective\.backend: 'gloo' works among"),
        ("members: [{name: a, env: {A: x}}, b]", r"members\.0\.env: launcher 'thread'"),
        ("members: [{name: a, override: {seed: 1}}]", r"members\.a\.override\.seed: "),
    ],
)
def test_the_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^{path}: {message}") as caught:
        pparallel.load(path)
    assert caught.value.source == str(path)


def test_a_typed_component_is_refused_alike() -> None:
    with pytest.raises(ConfigError, match=r"^size: a whole number of at least 1, not 0$"):
        ThreadPoolConfig(size=0)
    with pytest.raises(ConfigError, match="unknown key 'sise'"):
        ThreadPoolConfig(sise=0)  # type: ignore[call-arg]


def test_a_config_that_is_changed() -> None:
    for config, name in ((pparallel.RuntimeConfig(), "seed"), (ThreadPoolConfig(), "size")):
        for change in (
            functools.partial(setattr, config, name, 3),
            functools.partial(delattr, config, name),
        ):
            with pytest.raises(ConfigError, match=rf"^{name}: .* make another") as caught:
                change()
            assert caught.value.path == name


def test_the_config_of_any_backend_is_the_defaults() -> None:
    assert PoolConfig(size=2).backend == "thread"
    assert pparallel.load({"pool": {"size": 2}}).pool == ThreadPoolConfig(size=2)


def test_several_members_need_launch() -> None:
    for members in (2, ["a", "b"]):
        with pytest.raises(ConfigError, match=r"pparallel\.launch.*member="):
            pparallel.build({"members": members})
    with pytest.raises(ConfigError, match="torchrun"):
        pparallel.build({"members": "auto"})
    with pytest.raises(ConfigError, match="the member given"):
        pparallel.build({"members": 2}, member=Member("x", 0, 0, 2, ("x", "y")))
    with pytest.raises(ValueError, match="does not fit"):
        Member("x", 3, 0, 2, ("x", "y"))


def run(rt: pparallel.Runtime) -> None:
    raise AssertionError("never run")


def test_targets() -> None:
    with pytest.raises(ConfigError, match="nothing to run"):
        pparallel.launch({})
    with pytest.raises(ConfigError, match="write 'module:function', not 'run'"):
        pparallel.launch({}, "run")
    with pytest.raises(ConfigError, match=r"module 'no_such_module' .* cannot be imported"):
        pparallel.launch({}, "no_such_module:run")
    with pytest.raises(ConfigError, match=r"has no function 'dump_'\. Did you mean 'dump'\?"):
        pparallel.launch({}, "json:dump_")
    with pytest.raises(ConfigError, match="is no function"):
        pparallel.launch({}, 3)  # type: ignore[arg-type]


async def later(rt: pparallel.Runtime) -> None:
    raise AssertionError("never run")


class _Later:
    def __call__(self, rt: pparallel.Runtime) -> Coroutine[Any, Any, None]:
        return later(rt)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize(
    "target",
    [later, f"{__name__}:later", functools.partial(later), _Later()],
    ids=["function", "name", "partial", "object"],
)
def test_a_target_that_nothing_would_run(target: Any, members: int) -> None:
    started: list[Event] = []
    with pytest.raises(ConfigError, match=r"^target: .*ater returns a coroutine.* asyncio\.run\("):
        pparallel.launch({"members": members}, target, listener=started.append)
    assert bool(started) == isinstance(target, _Later)  # the others are known before


@pytest.mark.parametrize("args", ["ab", b"ab", 1, {"a": 1}], ids=str)
def test_arguments_that_are_no_list(args: Any) -> None:
    with pytest.raises(ConfigError, match=r"^args: give .*a list or a tuple: \(.*,\), not"):
        pparallel.launch({"members": 2}, run, args)


def test_what_cannot_be_sent_is_named() -> None:
    with (
        pparallel.build() as rt,
        pytest.raises(SerializationError, match=r"^args\[0\] \(threading.Lock\)"),
    ):
        rt.group().rpc_sync(0, max, args=(threading.Lock(), 1))
