"""Whom the ordered server in a file trusts, and which configs it takes."""

from __future__ import annotations

import os
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlite_programs import server_at
from typing_extensions import override

import pparallel
from pparallel.errors import ConfigError, SerializationError
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel_serializers import DillSerializerConfig


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "values.db"


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


# -- trust ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["pickle", "dill", "cloudpickle"])
def test_a_serializer_that_may_run_code(path: Path, backend: str) -> None:
    message = rf"ordered_server\.serializer: what '{backend}' reads .*write trusted: true"
    with pytest.raises(ConfigError, match=message):
        server_at(path, serializer={"backend": backend})
    assert not path.exists()
    with server_at(path, serializer={"backend": backend}, trusted=True) as server:
        assert server.push("k", ConfigError("an object"), 1, None)
        found = server.pull("k")
    assert found is not None
    assert isinstance(found[0], ConfigError)


def test_data_alone_by_default(path: Path) -> None:
    with server_at(path, trusted=True) as server:
        with pytest.raises(SerializationError, match="ConfigError"):
            server.push("k", ConfigError("an object"), 1, None)
        assert server.keys() == []


class Trap:
    """What runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    @override
    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_a_store_of_pickles_is_not_read_unless_trusted(path: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    trusting: dict[str, Any] = {"serializer": DillSerializerConfig(), "trusted": True}
    with server_at(path, **trusting) as server:
        assert server.push("k", Trap(mark), 1, None)
    message = r"holds values written by the serializer 'dill'.*serializer: \{backend: dill\}"
    with pytest.raises(ConfigError, match=message), server_at(path):
        pass
    change(path, "UPDATE about SET value = 'safe' WHERE name = 'serializer'")
    with server_at(path) as server, pytest.raises(SerializationError):
        server.pull("k")
    assert not mark.exists(), "a pickle was read"
    change(path, "UPDATE about SET value = 'dill' WHERE name = 'serializer'")
    with server_at(path, **trusting) as server:
        server.pull("k")
    assert mark.exists(), "the trap does not work"


def test_a_store_of_data_is_not_read_as_pickles(path: Path) -> None:
    with server_at(path) as server:
        assert server.push("k", "kept", 1, None)
    trusting: dict[str, Any] = {"serializer": DillSerializerConfig(), "trusted": True}
    message = r"written by the serializer 'safe'.*serializer: \{backend: safe\}"
    with pytest.raises(ConfigError, match=message), server_at(path, **trusting):
        pass
    with server_at(path) as server:
        assert server.pull("k") == ("kept", 1)


# -- configs ----------------------------------------------------------------------------------


def load(**options: Any) -> OrderedServerConfig:
    return pparallel.load(OrderedServerConfig, {"backend": "sqlite", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path: .*required"),
        ({"path": "x.db", "synchronous": "off"}, "synchronous: .*'full' or 'normal'"),
        ({"path": "x.db", "timeout": 0}, "timeout: .*greater than 0"),
        ({"path": "x.db", "poll": -1}, "poll: .*greater than 0"),
        ({"path": "x.db", "version_depth": 0}, "version_depth: .*at least 1"),
        ({"path": "x.db", "serializer": {"backend": "saef"}}, "Did you mean 'safe'"),
        ({"path": "x.db", "trust": True}, "unknown key 'trust'.*Did you mean 'trusted'"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(**options)


def test_it_serves_no_members_of_several_machines() -> None:
    config = {
        "members": 2,
        "launcher": {"backend": "torchrun"},
        "ordered_server": {"backend": "sqlite", "path": "x.db"},
    }
    message = r"ordered_server\.backend: 'sqlite' works among processes or threads only"
    with pytest.raises(ConfigError, match=message):
        pparallel.load(config)


def test_pickles_of_a_config(path: Path) -> None:
    config = load(path=str(path))
    assert pickle.loads(pickle.dumps(config)) == config
