from __future__ import annotations

import pytest

from pparallel.errors import ConfigError
from pparallel.runtime import environment
from pparallel.runtime.environment import MachinWorld, Torchrun

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in TORCHRUN:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("text", "strict"), [("1", True), ("yes", True), ("0", False), ("", False), ("False", False)]
)
def test_strict_plugins(text: str, strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPARALLEL_STRICT_PLUGINS", text)
    assert environment.strict_plugins() is strict


def test_disabled_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PPARALLEL_DISABLE_PLUGINS", raising=False)
    assert environment.disabled_plugins() == frozenset()
    monkeypatch.setenv("PPARALLEL_DISABLE_PLUGINS", "a, b,,")
    assert environment.disabled_plugins() == {"a", "b"}


def test_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPARALLEL__POOL__SIZE", "8")
    monkeypatch.setenv("PPARALLEL__EXTRA__CRITIC__REDUCE_BATCH_SIZE", "2")
    monkeypatch.setenv("PPARALLEL_POOL", "no override")
    assert environment.overrides() == [
        (["extra", "critic", "reduce_batch_size"], "2"),
        (["pool", "size"], "8"),
    ]


def test_machin_world(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRANSPORT", "KEYS", "ALLOW_INSECURE"):
        monkeypatch.delenv(f"PPARALLEL_MACHIN_{name}", raising=False)
    assert environment.machin_world() == MachinWorld("zmq", None, allow_insecure=False)
    monkeypatch.setenv("PPARALLEL_MACHIN_TRANSPORT", " IPC ")
    monkeypatch.setenv("PPARALLEL_MACHIN_KEYS", "keys/a")
    monkeypatch.setenv("PPARALLEL_MACHIN_ALLOW_INSECURE", "1")
    assert environment.machin_world() == MachinWorld("ipc", "keys/a", allow_insecure=True)


def test_master(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.master() == (None, None)
    monkeypatch.setenv("MASTER_ADDR", "head")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert environment.master() == ("head", 29500)


def test_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.torchrun() is None
    monkeypatch.setenv("RANK", "3")
    assert environment.torchrun() is None
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert environment.torchrun() == Torchrun(3, 3, 4, None, None)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "head")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert environment.torchrun() == Torchrun(3, 1, 4, "head", 29500)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("RANK", "first", "RANK: 'first' is not a number; torchrun sets this variable"),
        ("RANK", "-1", "RANK: '-1' is not a number"),
        ("RANK", "2", "RANK: the rank is less than WORLD_SIZE, and that is 2; it is 2"),
        ("WORLD_SIZE", "", "WORLD_SIZE: '' is not a number"),
        ("LOCAL_RANK", "x", "LOCAL_RANK: 'x' is not a number"),
        ("MASTER_PORT", "http", "MASTER_PORT: 'http' is not a number"),
    ],
)
def test_what_torchrun_would_not_say(
    variable: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=message):
        environment.torchrun()
