"""The command line as its users see it: its output and its exit code.

Each command is a fork of one interpreter; those that Ctrl-C ends are programs of their own.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
import typer
from warm_interpreter import Done, WarmInterpreter

from pparallel.cli import app
from pparallel.plugin import INTERFACE_VERSIONS

Command = Callable[..., Done]
ROOT = Path(__file__).resolve().parents[2]

JOB = """\
members: [ps, worker-0, worker-1]
target: job:main
reducer: {backend: local}
"""

TARGETS = """\
import logging
import sys
import threading
import time

stop_me = threading.Event()


def main(rt, scale=1):
    rt.report(step=rt.rank, loss=0.5)
    return {"rank": rt.rank * scale, "pool": rt.config.pool and rt.config.pool.size}


def talk(rt):
    sys.stdout.write(f"printed by {rt.name}\\n")
    logging.getLogger("job").warning("logged by %s", rt.name)
    return rt.name


def bad_results(rt):
    return [float("nan"), object, 3][rt.rank]


def fail(rt):
    if rt.rank == 1:
        raise RuntimeError("the sensor is off")
    rt.group().barrier()


def fail_while_another_spins(rt):
    if rt.rank == 1:
        raise RuntimeError("the sensor is off")
    if rt.rank == 2:
        while True:
            pass
    rt.group().barrier()


def leave(rt):
    if rt.rank == 2:
        sys.exit(3)


def say_ready(rt):
    if rt.rank == 0:
        print("ready", file=sys.stderr, flush=True)


def wait(rt):
    say_ready(rt)
    rt.ordered_server.wait("never")


def spin(rt):
    say_ready(rt)
    while True:
        pass


def hold(rt):
    say_ready(rt)
    threading.Lock().acquire() and stop_me.wait()


def swallow(rt):
    say_ready(rt)
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "alone.yaml").write_text("target: job:main\n")
    (tmp_path / "job.py").write_text(TARGETS)
    return tmp_path


@pytest.fixture
def pparallel(folder: Path, warm: WarmInterpreter) -> Command:
    """What runs the command."""
    # Outside the config's folder, so that pparallel alone finds what is there.
    return partial(warm.pparallel, folder.parent)


@pytest.fixture
def run(folder: Path, pparallel: Command) -> Command:
    """What runs the job of ``folder``."""
    return partial(pparallel, "run", str(folder / "job.yaml"))


# -- run ------------------------------------------------------------------------------------------


def test_run_tells_each_members_result_and_the_seconds(run: Command) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert "[worker-0] step=1 loss=0.5" in done.stdout.splitlines()
    assert "worker-1: {'rank': 2, 'pool': None}" in done.stdout.splitlines()
    assert re.fullmatch(r"done in \d+\.\d\d s", done.stdout.splitlines()[-1])


def test_run_sums_up_how_each_member_went(run: Command) -> None:
    rows = [line.split() for line in run().stdout.splitlines()]
    heading = rows.index(["MEMBER", "STATE", "STEPS", "RATE", "SECONDS"])
    members = rows[heading + 1 : heading + 4]
    assert [row[:4] for row in members] == [
        ["ps", "done", "0", "-"],
        ["worker-0", "done", "1", "-"],
        ["worker-1", "done", "2", "-"],
    ]
    assert all(float(row[4]) >= 0 for row in members)


def test_run_of_one_member(folder: Path, pparallel: Command) -> None:
    done = pparallel("run", str(folder / "alone.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"] == {"member-0": {"rank": 0, "pool": None}}


def test_a_directory_is_sought_beside_its_config(folder: Path, pparallel: Command) -> None:
    (folder / "mods").mkdir()
    (folder / "mods" / "kept.py").write_text("def main(rt):\n    return 7\n")
    (folder / "far.yaml").write_text("directory: mods\ntarget: kept:main\n")
    done = pparallel("run", f"{folder.name}/far.yaml")  # not from the folder of the config
    assert (done.returncode, "member-0: 7" in done.stdout) == (0, True), done


def test_run_takes_a_target_and_overrides(run: Command) -> None:
    settings = ("--set", "pool.size=3", "--set", "args=[10]", "--json")
    done = run("job:main", *settings)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert results["worker-1"] == {"rank": 20, "pool": 3}


def test_run_takes_the_name_of_a_backend(run: Command) -> None:
    done = run("job:main", "--set", "launcher=thread", "--set", "pool=2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"]["ps"]["pool"] == 2


def test_json_is_one_object_and_nothing_else(run: Command) -> None:
    done = run("job:talk", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["results"] == {each: each for each in ("ps", "worker-0", "worker-1")}
    assert set(printed) == {"results", "seconds", "members"}
    assert printed["seconds"] > 0
    assert {name: each["state"] for name, each in printed["members"].items()} == {
        "ps": "done",
        "worker-0": "done",
        "worker-1": "done",
    }
    assert "[worker-0] WARNING: logged by worker-0" in done.stderr.splitlines()
    assert "printed by ps" in done.stderr


def test_results_that_are_not_json_become_their_repr(run: Command) -> None:
    done = run("job:bad_results", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert results == {"ps": "nan", "worker-0": "<class 'object'>", "worker-1": 3}
    assert "The result of ps is not JSON" in done.stderr
    assert "The result of worker-0 is not JSON" in done.stderr
    assert "The result of worker-1" not in done.stderr


# -- failures -------------------------------------------------------------------------------------


def test_a_failing_member_is_named_with_its_traceback(run: Command) -> None:
    done = run("job:fail")
    assert done.returncode == 1
    assert "member 'worker-0' failed" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr
    assert 'raise RuntimeError("the sensor is off")' in done.stderr
    assert "done in" not in done.stdout
    assert re.search(r"^worker-0 +failed", done.stdout, re.M)
    assert re.search(r"^ps +stopped", done.stdout, re.M)


def test_a_failing_member_in_json(run: Command) -> None:
    done = run("job:fail", "--json")
    assert done.returncode == 1
    error = {"type": "RuntimeError", "message": "the sensor is off", "member": "worker-0"}
    printed = json.loads(done.stdout)
    assert printed["error"] == error
    assert printed["members"]["worker-0"]["state"] == "failed"
    assert printed["members"]["worker-0"]["error"] == "RuntimeError: the sensor is off"
    assert printed["members"]["ps"]["state"] == "stopped"
    assert "Traceback (most recent call last)" in done.stderr


def test_a_failure_ends_the_process_although_another_member_spins(run: Command) -> None:
    done = run("job:fail_while_another_spins")
    assert done.returncode == 1
    assert "the sensor is off" in done.stderr


def test_a_member_that_exits_has_failed(run: Command) -> None:
    done = run("job:leave")
    assert done.returncode == 1
    assert "member 'worker-1' failed" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "pool.sise=3"], "Did you mean 'size'?"),
        (["--set", "pool.backend=thred"], "Did you mean 'thread'?"),
        (["--set", "poool.size=3"], "Did you mean 'pool'?"),
        (["--set", "members=0"], "at least one member"),
        (["--set", "nonsense"], "nonsense"),
        (["jobb:main"], "module 'jobb' of 'jobb:main' cannot be imported"),
        (["job:mian"], "Did you mean 'main'?"),
        (["main"], "module:function"),
    ],
)
def test_a_wrong_config_is_one_message(run: Command, args: list[str], message: str) -> None:
    done = run(*args)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("pparallel: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_wrong_config_in_json(run: Command) -> None:
    done = run("--json", "--set", "pool.sise=3")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "ConfigError"
    assert "pool.sise" in error["message"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.yaml", None, "missing.yaml"),
        ("empty.yaml", "", "empty.yaml"),
        ("list.yaml", "- 1\n", "mapping"),
        ("broken.yaml", "pool:\n  size: [1\n", "line"),
        ("job.ini", "[pool]\n", ".yaml"),
    ],
)
def test_a_file_that_is_no_config(
    folder: Path, pparallel: Command, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (folder / name).write_text(text)
    done = pparallel("run", str(folder / name))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [["run"], ["run", "a.yaml", "--nope"], ["nope"]])
def test_wrong_usage(pparallel: Command, args: list[str]) -> None:
    done = pparallel(*args)
    assert done.returncode == 2
    assert "Usage: pparallel" in done.stderr


# -- Ctrl-C ---------------------------------------------------------------------------------------


def first_line(stream: IO[str] | None, expected: str) -> None:
    assert stream is not None
    for line in stream:
        if expected in line:
            return
    pytest.fail(f"the process ended without saying {expected!r}")


def interrupted(folder: Path, *args: str) -> tuple[int, str, float]:
    """Run until a member says that it is ready, press Ctrl-C; return code, stdout, seconds."""
    command = [sys.executable, "-m", "pparallel", "run", *args]
    with subprocess.Popen(
        command,
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            first_line(process.stderr, "ready")
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            out, _ = process.communicate(timeout=30)
            return process.returncode, out, time.monotonic() - began
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("config", "target"),
    [
        ("job.yaml", "wait"),
        ("job.yaml", "spin"),
        ("alone.yaml", "hold"),
        ("alone.yaml", "swallow"),
    ],
)
def test_an_interrupt_ends_all_members(folder: Path, config: str, target: str) -> None:
    code, _, seconds = interrupted(folder, str(folder / config), f"job:{target}")
    assert code == 130
    assert seconds <= 10.0  # two are promised, on a machine that does nothing else


def test_an_interrupt_in_json(folder: Path) -> None:
    code, out, _ = interrupted(folder, str(folder / "job.yaml"), "job:spin", "--json")
    assert code == 130
    assert json.loads(out) == {"error": {"type": "KeyboardInterrupt", "message": "interrupted"}}


# -- the rest -------------------------------------------------------------------------------------


def test_help_and_version(pparallel: Command) -> None:
    shown = pparallel("--help")
    assert shown.returncode == 0
    assert {"run", "backends", "schema", "doctor"} <= set(shown.stdout.split())
    version = pparallel("--version")
    assert re.fullmatch(r"pparallel \d+\.\d+\.\d+\S*\n", version.stdout)


def commands() -> Iterator[tuple[str, Any]]:
    group = typer.main.get_command(app)
    yield "pparallel", group
    yield from getattr(group, "commands", {}).items()


@pytest.mark.parametrize(
    ("name", "command"), [pytest.param(*each, id=each[0]) for each in commands()]
)
def test_every_command_and_option_is_documented(name: str, command: Any) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    intro, *sections = re.split(r"^## ", page, flags=re.M)
    by_name = {each.partition("\n")[0]: each for each in sections}
    section = intro if name == "pparallel" else by_name[name]
    assert command.help
    for each in command.params:
        assert each.help, each.name
        names = each.opts if each.param_type_name == "option" else [each.name.upper()]
        assert all(f"`{option}" in section for option in names), each.name


def test_help_tells_every_option(pparallel: Command) -> None:
    for name, command in commands():
        shown = pparallel(*([] if name == "pparallel" else [name]), "--help")
        assert shown.returncode == 0, shown.stderr
        for each in command.params:
            wanted = each.opts if each.param_type_name == "option" else [each.name.upper()]
            assert all(option in shown.stdout for option in wanted), (name, each.name)


def test_backends_is_a_table(pparallel: Command) -> None:
    done = pparallel("backends")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["INTERFACE", "NAME", "PACKAGE", "VERSION", "API", "FEATURES", "STATUS"]
    assert [row[:3] for row in rows if row[:2] == ["pool", "serial"]] == [
        ["pool", "serial", "pparallel"]
    ]


def plugin(folder: Path, name: str, code: str) -> None:
    """Put a distribution with one plugin into *folder*."""
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[pparallel]\n{name} = {name}_plugin\n")
    (folder / f"{name}_plugin.py").write_text(code)


SHELF = """\
from typing import Literal
from pparallel.interfaces.pool import PoolConfig
from pparallel.plugin import Backend, hookimpl

class ShelfPoolConfig(PoolConfig, frozen=True):
    backend: Literal["shelf"] = "shelf"

@hookimpl
def pparallel_backends():
    return [Backend("pool", "shelf", config=f"{__name__}:ShelfPoolConfig",
                    target="shelf_plugin:ShelfPool", install="pip install planks",
                    requires=("planks_that_nobody_has",))]
"""


def test_backends_tells_what_to_install_and_what_is_broken(
    folder: Path, pparallel: Command
) -> None:
    plugin(folder, "shelf", SHELF)
    plugin(folder, "crash", "raise OSError('no disk')\n")
    done = pparallel("backends", PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr
    shelf = next(line for line in done.stdout.splitlines() if " shelf " in line)
    assert shelf.split()[:5] == ["pool", "shelf", "shelf", "1.5", str(INTERFACE_VERSIONS["pool"])]
    assert "missing dependency" in shelf
    assert "pip install planks" in shelf
    assert "crash (crash 1.5): OSError: no disk" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(("by", "who"), [(1, "pparallel"), (-1, "shelf")])
def test_backends_of_another_interface_version_are_refused(
    folder: Path, pparallel: Command, by: int, who: str
) -> None:
    version = INTERFACE_VERSIONS["pool"] + by
    requirement = 'requires=("planks_that_nobody_has",)'
    plugin(folder, "shelf", SHELF.replace(requirement, f"interface_version={version}"))
    environment = {"PYTHONPATH": str(folder)}
    why = f"written for version {version} of the interface pool, and this pparallel has version"
    upgrade = f"{INTERFACE_VERSIONS['pool']}: upgrade {who}"
    table = pparallel("backends", **environment).stdout
    row = next(line.split() for line in table.splitlines() if " shelf " in line)
    assert row == ["pool", "shelf", "shelf", "1.5", str(version), "-", "broken"]
    assert f"shelf (shelf 1.5): pool backend shelf_plugin:ShelfPool was {why} {upgrade}" in table
    offers = json.loads(pparallel("backends", "--json", **environment).stdout)
    (offer,) = [each for each in offers if each["name"] == "shelf"]
    assert (offer["interface_version"], offer["status"]) == (version, "broken")
    assert why in offer["detail"]
    (folder / "job.yaml").write_text("target: job:main\npool: {backend: shelf}\n")
    done = pparallel("run", str(folder / "job.yaml"), **environment)
    assert done.returncode == 2
    assert "pool backend 'shelf' of plugin shelf_plugin (shelf 1.5) is broken: " in done.stderr
    assert f"{why} {upgrade}" in done.stderr


def test_backends_in_json(folder: Path, pparallel: Command) -> None:
    plugin(folder, "crash", "raise OSError('no disk')\n")
    done = pparallel("backends", "--json", PYTHONPATH=str(folder))
    offers = json.loads(done.stdout)
    by_name = {(each["interface"], each["name"]): each for each in offers}
    assert by_name["pool", "thread"]["status"] == "available"
    assert isinstance(by_name["pool", "thread"]["features"], list)
    crash = by_name["", "crash"]
    assert (crash["package"], crash["version"], crash["status"]) == ("crash", "1.5", "broken")
    assert crash["detail"].startswith("Traceback")


def test_a_broken_plugin_can_be_made_fatal(folder: Path, pparallel: Command) -> None:
    plugin(folder, "crash", "raise OSError('no disk')\n")
    strict = {"PYTHONPATH": str(folder), "PPARALLEL_STRICT_PLUGINS": "1"}
    done = pparallel("backends", **strict)
    assert done.returncode == 2
    assert "no disk" in done.stderr
    assert "Traceback" not in done.stderr
