"""The shipped state machines: what they accept, what they show, and that they do the same again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pparallel
from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.interfaces.pool.results import PoolResult, Publishing
from pparallel.testing.machines import (
    OrderedServerMachine,
    ordered_server_machine,
    pool_machine,
    run_machine,
    running,
)
from pparallel.testing.machines.notes import check_starts
from pparallel.testing.machines.outcomes import Call, Doubts, Task
from pparallel.testing.machines.tasks import perform
from pparallel.testing.suite import changed
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_servers import MemoryOrderedServerConfig, SqliteOrderedServerConfig


@pytest.fixture(autouse=True)
def _time_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have as many sequences tried on a busy computer as on another."""
    for name in ("SECONDS", "_LOOKING"):
        monkeypatch.setattr(running, name, 1000.0)
    monkeypatch.setattr(running, "QUICK", 0.0)


@pytest.fixture
def _shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a shorter sequence looked for, however slow the one that failed was."""
    monkeypatch.setattr(running, "QUICK", 1000.0)


def test_servers_that_share_a_file(tmp_path: Path) -> None:
    config = SqliteOrderedServerConfig(path=tmp_path / "values.db", synchronous="normal", poll=1)
    run_machine(ordered_server_machine(config, clients=3, durable=True), sequences=8)
    with pparallel.build(config) as server:
        assert len(server.keys()) <= 5


def test_servers_that_share_nothing() -> None:
    machine = ordered_server_machine(MemoryOrderedServerConfig(), clients=2)
    with pytest.raises(AssertionError):
        run_machine(machine)


def test_a_server_that_forgets_when_it_closes() -> None:
    machine = ordered_server_machine(MemoryOrderedServerConfig(), durable=True)
    with pytest.raises(AssertionError):
        run_machine(machine)


def test_each_sequence_has_a_config_of_its_own(tmp_path: Path) -> None:
    made: list[SqliteOrderedServerConfig] = []

    def config() -> OrderedServerConfig:
        made.append(SqliteOrderedServerConfig(path=tmp_path / f"{len(made)}.db"))
        return made[-1]

    run_machine(ordered_server_machine(config, durable=True), sequences=5)
    assert len({each.path for each in made}) == len(made) >= 5


def with_one_more(config: OrderedServerConfig) -> OrderedServer:
    """Return a server that keeps one version too many."""
    return pparallel.build(changed(config, version_depth=config.version_depth + 1))


@pytest.mark.usefixtures("_shortened")
def test_the_shortest_sequence_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ordered_server_machine(MemoryOrderedServerConfig(), build=with_one_more)
    with pytest.raises(AssertionError, match="versions of") as caught:
        run_machine(machine)
    shown = capsys.readouterr().out + "".join(getattr(caught.value, "__notes__", []))
    shortest = shown.rpartition("state = OrderedServerMachine()")[2]
    assert shortest.startswith("state.begin(depth="), shown
    assert 2 <= shortest.count("Push(") <= 4, shortest
    assert shortest.count("state.") <= 8, shortest


def test_the_sequences_are_the_same_each_time() -> None:
    runs: list[list[int]] = []

    def build(config: OrderedServerConfig) -> OrderedServer:
        runs[-1].append(config.version_depth)
        server: OrderedServer = pparallel.build(config)
        return server

    for _ in range(2):
        runs.append([])
        machine = ordered_server_machine(MemoryOrderedServerConfig(), build=build)
        run_machine(machine, sequences=20, steps=5)
    assert len(set(runs[0])) > 1
    assert runs[0] == runs[1]


def test_a_run_ends_when_its_time_is_over() -> None:
    built: list[OrderedServerConfig] = []

    def build(config: OrderedServerConfig) -> OrderedServer:
        built.append(config)
        server: OrderedServer = pparallel.build(config)
        return server

    run_machine(ordered_server_machine(MemoryOrderedServerConfig(), build=build), seconds=0)
    assert built == []
    broken = ordered_server_machine(MemoryOrderedServerConfig(), build=with_one_more)
    run_machine(broken, seconds=0)
    with pytest.raises(AssertionError):
        run_machine(broken, steps=4)


class Ending:
    """Builds servers; while it builds a certain one, the time for sequences comes to an end."""

    def __init__(self, last: int, make: Callable[[OrderedServerConfig], Any]) -> None:
        self.machine = ordered_server_machine(MemoryOrderedServerConfig(), build=self.build)
        self.built = 0
        self._last, self._make = last, make

    def build(self, config: OrderedServerConfig) -> Any:
        self.built += 1
        if self.built == self._last:
            self.machine.begins_until = 0.0
        return self._make(config)


@pytest.mark.parametrize("last", [1, 2, 10])
def test_the_end_of_its_time_is_no_failure(last: int) -> None:
    ending = Ending(last, pparallel.build)
    run_machine(ending.machine, sequences=1000, steps=5, seconds=1000)
    assert ending.built == last


@pytest.mark.usefixtures("_shortened")
@pytest.mark.parametrize("last", [1, 2])
def test_a_failure_in_the_last_sequence_is_shown(last: int) -> None:
    def make(config: OrderedServerConfig) -> OrderedServer:
        assert ending.built < last, "it cannot be opened"
        return pparallel.build(config)

    ending = Ending(last, make)
    with pytest.raises(AssertionError, match="it cannot be opened"):
        run_machine(ending.machine, seconds=1000)
    assert ending.built > last, "it was not tried again"


@pytest.mark.usefixtures("_shortened")
def test_a_failure_is_shown_where_the_time_for_a_shorter_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[int] = []  # the servers that were built when each run began
    run = running._run

    def count(*args: Any) -> None:
        runs.append(ending.built)
        run(*args)

    def make(config: OrderedServerConfig) -> OrderedServer:
        if len(runs) == 1:
            return with_one_more(config)
        if ending.built == runs[-1] + 5:
            ending.machine.begins_until = 0.0
        return pparallel.build(config)

    ending = Ending(0, make)
    monkeypatch.setattr(running, "_run", count)
    with pytest.raises(AssertionError, match="versions of"):
        run_machine(ending.machine, seconds=1000)
    assert len(runs) == 4, "no shorter one was looked for"
    assert ending.built == runs[-1] + 5


def test_machines_of_two_configs_are_two() -> None:
    first, second = (ordered_server_machine(MemoryOrderedServerConfig()) for _ in range(2))
    assert first is not second
    assert issubclass(first, OrderedServerMachine)
    assert first.failed_after == 0.0


@pytest.mark.parametrize("config", [SerialPoolConfig(), ThreadPoolConfig()], ids=str)
def test_pools(config: Any) -> None:
    run_machine(pool_machine(config), sequences=10)


def test_a_pool_that_claims_what_it_does_not_do() -> None:
    machine = pool_machine(ThreadPoolConfig(), features=frozenset({"parallel"}))
    with pytest.raises(AssertionError, match="unsendable"):
        run_machine(machine, steps=4)


def a_call(numbers: list[int], **options: Any) -> Call:
    handle: PoolResult[Any] = PoolResult(lambda *_: None, Publishing())
    tasks = tuple(Task("return", each) for each in numbers)
    call = Call(tasks, len(tasks) > 1, handle, None, Doubts(), None)
    for name, value in options.items():
        setattr(call, name, value)
    return call


@pytest.mark.parametrize(
    ("started", "calls", "message"),
    [
        ([1, 2, 1], [a_call([1, 2], ran={1, 2})], r"\[1\] were started more than once"),
        ([1], [a_call([1, 2], ran={1, 2})], r"\[2\] were never started"),
        ([1], [a_call([1], cancelled=True)], r"\[1\] were cancelled, and run"),
        ([2, 1], [a_call([1]), a_call([2])], r"in the order \[2, 1\]"),
    ],
)
def test_what_the_notes_tell(
    started: list[int], calls: list[Call], message: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    for number in started:
        assert perform(notes, "return", number) == 2 * number
    with pytest.raises(AssertionError, match=message):
        check_starts(notes, 1, calls, [])


def test_what_the_notes_must_not_tell(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    for number in (2, 1):
        perform(notes, "return", number)
    check_starts(notes, 2, [a_call([1], ran={1}), a_call([2])], [])  # one of two workers was late
    check_starts(notes, 1, [a_call([1], doubts=Doubts(death=True)), a_call([2])], [])
    check_starts(tmp_path / "none", 1, [a_call([1], cancelled=True), a_call([2])], [])


def test_without_hypothesis() -> None:
    """The suites, and what the machine's workers import, do without it."""
    code = """
import sys
sys.modules["hypothesis"] = None
import pparallel.testing, pparallel.testing.machines.tasks
from pparallel.errors import MissingDependencyError
from pparallel.testing import OrderedServerSuite, PoolSuite
try:
    from pparallel.testing.machines import pool_machine
except MissingDependencyError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'pparallel[testing]'" in done.stdout
