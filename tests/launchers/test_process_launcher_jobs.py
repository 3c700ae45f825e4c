"""Jobs whose members are processes: what they tell, and how they end."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import launched_jobs
import psutil
import pytest

import pparallel
from pparallel.cli import logs
from pparallel.cli.progress.prints import MemberStream
from pparallel.errors import ConfigError, RemoteError, WorkerLostError
from pparallel.runtime.events import Event, MemberEnded, MemberStarted, Reported
from pparallel.testing.patience import PATIENCE, until

HELPERS = Path(__file__).parents[1] / "helpers"


def job(members: Any = 1, **launcher: object) -> dict[str, Any]:
    launcher = {"backend": "process", "preload": ["launched_jobs"], **launcher}
    return {"members": members, "launcher": launcher}


def heard_from(target: Any, members: Any = 1, **options: Any) -> tuple[list[Any], list[Event]]:
    heard: list[Event] = []
    results = pparallel.launch(job(members), target, listener=heard.append, **options)
    return results, heard


# -- members ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_members_are_processes_that_start_as_the_config_says(method: str) -> None:
    names = ["ps", "worker-0"]
    found = pparallel.launch(job(names, start_method=method), launched_jobs.meet)
    assert [(name, group) for name, _, _, group in found] == [(each, names) for each in names]
    assert len({os.getpid(), *(pid for _, pid, _, _ in found)}) == 3
    assert all((parent == os.getpid()) is (method != "forkserver") for _, _, parent, _ in found)


def test_members_that_do_no_torch_work_import_none() -> None:
    assert pparallel.launch(job(2), launched_jobs.imported) == [[], []]


def test_a_member_has_variables_of_its_own() -> None:
    members = [{"name": "a", "env": {"COLOUR": "red"}}, {"name": "b", "env": {"COLOUR": "blue"}}]
    assert pparallel.launch(job(members), launched_jobs.colour) == ["red", "blue"]


def test_a_job_from_a_file_finds_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("def main(rt, x):\n    return rt.rank * x\n")
    config = tmp_path / "job.yaml"
    config.write_text("members: 2\nlauncher: {backend: process}\ntarget: beside_it:main\nargs: [3]")
    assert pparallel.launch(str(config)) == [0, 3]
    assert "beside_it" not in sys.modules  # only members import it


@pytest.mark.parametrize("target", ["no_such_module:main", "no_such.module:main", "main"])
def test_a_target_that_is_not_there_is_refused_at_once(target: str) -> None:
    with pytest.raises(ConfigError, match=r"no_such|module:function"):
        pparallel.launch(job(2), target)


# -- events -----------------------------------------------------------------------------------


def test_events_of_all_members_are_heard_here() -> None:
    results, heard = heard_from(launched_jobs.report, 2)
    assert os.getpid() not in results
    for rank, name in enumerate(("member-0", "member-1")):
        own = [each for each in heard if each.member == name]
        assert [type(each) for each in own] == [MemberStarted, *[Reported] * 3, MemberEnded]
        assert own[0] == MemberStarted(name, rank, time=own[0].time)
        assert own[2] == Reported(name, {"step": 1, "loss": 0.5}, time=own[2].time)


def test_events_of_other_kinds_are_not_sent() -> None:
    _, heard = heard_from(launched_jobs.report, kinds=[MemberStarted])
    assert [type(each) for each in heard] == [MemberStarted]


def test_nothing_is_told_where_nobody_listens() -> None:
    assert pparallel.launch(job(), launched_jobs.is_heard) == [False]


def test_what_cannot_be_sent_of_an_event_is_told_in_words() -> None:
    _, heard = heard_from(launched_jobs.report_oddly)
    (report,) = (each for each in heard if isinstance(each, Reported))
    assert report.values["step"] == 1
    assert str(report.values["lock"]).startswith("<unlocked _thread.lock")


def test_an_error_that_cannot_be_sent_is_told_in_words() -> None:
    heard: list[Event] = []
    with pytest.raises(RemoteError, match="Refusing: no way") as caught:
        pparallel.launch(job(), launched_jobs.fail_oddly, listener=heard.append)
    assert "in member 'member-0'" in str(caught.value)
    (end,) = (each for each in heard if isinstance(each, MemberEnded))
    assert isinstance(end.error, RemoteError)
    assert "in fail_oddly" in str(end.error)


# -- logs and prints --------------------------------------------------------------------------


@contextlib.contextmanager
def log_lines() -> Iterator[io.StringIO]:
    """Yield what is logged inside, as ``pparallel run`` writes it."""
    root, lines = logging.getLogger(), io.StringIO()
    level, before = root.level, list(root.handlers)
    logs.configure(lines)
    try:
        yield lines
    finally:
        root.setLevel(level)
        root.handlers[:] = before


def test_log_lines_have_the_name_of_their_member() -> None:
    with log_lines() as lines, pytest.warns(UserWarning, match="is odd") as warned:
        pparallel.launch(job(["ps", "worker"]), launched_jobs.speak)
    said = lines.getvalue().splitlines()
    assert {"[ps] I am ps", "[worker] I am worker"} <= set(said)
    texts = sorted(str(each.message) for each in warned)
    assert texts == ["ps is odd (in ps)", "worker is odd (in worker)"]


@pytest.mark.filterwarnings("ignore:.* is odd")
def test_printed_lines_have_the_name_of_their_member(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str | None, str]] = []
    stream = MemberStream(sys.stdout, lambda name, text: said.append((name, text)))
    monkeypatch.setattr(sys, "stdout", stream.as_text())
    pparallel.launch(job(["ps", "worker"]), launched_jobs.speak)
    assert sorted(said) == [("ps", "printed by ps"), ("worker", "printed by worker")]


def test_run_shows_what_members_log_and_return(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "members: [ps, worker]\nlauncher: {backend: process}\ntarget: launched_jobs:speak\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pparallel", "run", str(tmp_path / "job.yaml")],
        env={**os.environ, "PYTHONPATH": str(HELPERS)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"[ps] I am ps", "printed by worker", "ps: None"} <= set(done.stdout.splitlines())


# -- ends -------------------------------------------------------------------------------------


def test_a_member_that_is_killed_ends_the_job_by_name(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            pparallel.launch(job(["ps", "worker", "third"]), launched_jobs.wait, [tmp_path])
        except WorkerLostError as error:
            failures.append(error)

    thread = Thread(target=run)
    thread.start()
    until(lambda: len(list(tmp_path.iterdir())) == 3, "all members run")
    pids = {each.name: int(each.read_text() or 0) for each in tmp_path.iterdir()}
    os.kill(pids["worker"], signal.SIGKILL)
    killed = time.monotonic()
    thread.join(PATIENCE)
    assert time.monotonic() - killed < 5.0
    (error,) = failures
    assert "rank 1 (worker)" in str(error)
    assert not any(map(psutil.pid_exists, pids.values()))
