"""The ordered server does what every one promises, and what is its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pparallel
import pytest
from pparallel.errors import ConfigError
from pparallel.testing import OrderedServerSuite
from pparallel.testing.linearizability import ClientProcesses, explore
from pparallel.testing.machines import ordered_server_machine, run_machine
from typing_extensions import override

from pparallel_example import ExampleOrderedServerConfig


class TestExampleOrderedServer(OrderedServerSuite):
    @pytest.fixture
    @override
    def config(self, tmp_path: Path) -> ExampleOrderedServerConfig:
        return ExampleOrderedServerConfig(path=tmp_path / "values")


def test_it_is_found_by_name(tmp_path: Path) -> None:
    config = {"ordered_server": {"backend": "example", "path": tmp_path}}
    with pparallel.build(config) as rt:
        assert type(rt.ordered_server).__name__ == "ExampleOrderedServer"
        assert rt.ordered_server.push("k", [1], 1, None)


def test_values_outlive_the_server(tmp_path: Path) -> None:
    config = ExampleOrderedServerConfig(path=tmp_path)
    for round_ in range(3):
        with pparallel.build(config) as server:
            assert server.pull("k") == (None if round_ == 0 else (round_ - 1, round_ - 1))
            assert server.push("k", round_, round_, round_ - 1)


def test_any_sequence_of_operations_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    config = ExampleOrderedServerConfig(path=tmp_path)
    run_machine(ordered_server_machine(config, clients=2, durable=True), sequences=5)


def test_processes_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    with ClientProcesses(ExampleOrderedServerConfig(path=tmp_path, version_depth=3)) as clients:
        explore(clients, range(5))


def test_a_folder_that_has_vanished_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    folder = tmp_path / "values"
    with pparallel.build(ExampleOrderedServerConfig(path=folder)) as server:
        assert server.push("k", 1, 1, None)
        shutil.rmtree(folder)
        for use in (server.pull, server.versions, server.wait, server.delete):
            with pytest.raises(FileNotFoundError, match="values"):
                use("k")
        with pytest.raises(FileNotFoundError, match="values"):
            server.keys()
        with pytest.raises(FileNotFoundError, match="values"):
            server.push("k", 2, 2, 1)


def count(rt: pparallel.Runtime) -> object:
    server = rt.ordered_server
    for _ in range(20):
        done = False
        while not done:
            number, version = server.pull("number") or (0, None)
            done = server.push("number", number + 1, number + 1, version)
    rt.group().barrier()
    return server.pull("number")


def test_processes_share_it(tmp_path: Path) -> None:
    config = {
        "members": 2,
        "launcher": {"backend": "process"},
        "ordered_server": {"backend": "example", "path": tmp_path},
    }
    assert pparallel.launch(config, count) == [(40, 40)] * 2


def test_a_path_is_needed() -> None:
    with pytest.raises(ConfigError, match="path"):
        pparallel.load({"ordered_server": {"backend": "example"}})
