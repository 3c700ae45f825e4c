"""``pparallel doctor``: what it says of this machine, and of machines that are made up."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up_files import write
from warm_interpreter import WarmInterpreter

from pparallel.cli.doctor import gpus, limits, machine, ports, software
from pparallel.cli.doctor.check import guarded, size

MARKER = "do-not-show-this"
SECRETS = dict.fromkeys(
    ("PPARALLEL_KEY", "PPARALLEL__TRANSPORT__SECRET_KEY", "PPARALLEL_DISABLE_PLUGINS"), MARKER
)
GIB = 2**30
TORCH = """
__version__ = "2.0"
class version: cuda = None
class cuda: device_count = staticmethod(int)
"""


def doctor(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a program of its own, which has *cwd* among the places of imports."""
    clean = {key: each for key, each in os.environ.items() if not key.startswith("PPARALLEL_")}
    return subprocess.run(
        [sys.executable, "-m", "pparallel", "doctor", *args],
        cwd=cwd,
        env={**clean, **SECRETS},
        capture_output=True,
        text=True,
        check=False,
    )


def install(folder: Path, name: str, code: str) -> None:
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[pparallel]\n{name} = {name}_plugin\n")
    (folder / f"{name}_plugin.py").write_text(code)


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(
    warm: WarmInterpreter, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """What it says of this machine, where torch is quick to import."""
    directory = tmp_path_factory.mktemp("working")
    (directory / "torch.py").write_text(TORCH)
    return warm.pparallel(directory, "doctor", PYTHONPATH=str(directory), **SECRETS)


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port that somebody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def told_in_json(
    taken: int, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """What it says in a directory with a torch of its own, which is not to be run."""
    directory = tmp_path_factory.mktemp("working")
    (directory / "torch.py").write_text("raise SystemExit('ran')\n")
    return doctor("--json", "--port", str(taken), cwd=directory)


@pytest.fixture(scope="module")
def checks(told_in_json: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return checks_of(told_in_json)


def checks_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in json.loads(done.stdout)["checks"]}


def test_it_tells_of_this_machine(told: subprocess.CompletedProcess[str]) -> None:
    assert told.returncode == 0, told.stdout + told.stderr
    found = {line.split()[0] for line in told.stdout.splitlines() if not line.startswith(" ")}
    assert found <= {"ok", "warn"}
    for name in ("python", "cores", "memory", "shared memory", "open files", "gpus", "plugins"):
        assert re.search(rf"^(ok|warn) +{name} ", told.stdout, re.M), name
    assert told.stderr == ""


def test_it_speaks_json(
    told_in_json: subprocess.CompletedProcess[str], checks: dict[str, dict[str, str]], taken: int
) -> None:
    assert told_in_json.returncode == 0, told_in_json.stderr
    assert json.loads(told_in_json.stdout)["status"] == "warn"
    assert checks[f"port {taken}"]["status"] == "warn"
    assert checks[f"port {taken}"]["advice"]
    assert "port 29500" not in checks
    assert {"pydantic", "typer", "rich", "python", "pparallel"} <= set(checks)
    assert all(set(each) == {"name", "status", "detail", "advice"} for each in checks.values())
    assert all(each["advice"] for each in checks.values() if each["status"] != "ok")


def test_a_torch_in_the_working_directory_is_not_run(checks: dict[str, dict[str, str]]) -> None:
    assert "ran" not in checks["gpus"]["detail"]


def test_it_shows_no_secrets(
    told: subprocess.CompletedProcess[str], told_in_json: subprocess.CompletedProcess[str]
) -> None:
    for done in (told, told_in_json):
        assert done.returncode == 0, done.stderr
        assert MARKER not in done.stdout + done.stderr


def test_it_tells_of_broken_plugins_and_missing_libraries(
    tmp_path: Path, warm: WarmInterpreter
) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    install(tmp_path, "crash", "raise OSError('no disk')\n")
    install(
        tmp_path,
        "shelf",
        "from typing import Literal\n"
        "from pparallel.interfaces.pool import PoolConfig\n"
        "from pparallel.plugin import Backend, hookimpl\n"
        "class ShelfPoolConfig(PoolConfig, frozen=True):\n"
        "    backend: Literal['shelf'] = 'shelf'\n"
        "@hookimpl\n"
        "def pparallel_backends():\n"
        "    return [Backend('pool', 'shelf', config=f'{__name__}:ShelfPoolConfig',\n"
        "                    target='shelf_plugin:X', install='pip install planks',\n"
        "                    requires=('planks_that_nobody_has',))]\n",
    )
    path = str(tmp_path)
    done = warm.pparallel(tmp_path, "doctor", PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^warn +plugin crash +crash 1\.5 is broken: OSError: no disk$", *lines(done))
    assert re.search(r"^warn +pool shelf +not installed: planks_that_nobody_has$", *lines(done))
    assert "-> pip install planks" in done.stdout
    assert "Traceback" not in done.stdout
    strict = warm.pparallel(tmp_path, "doctor", PYTHONPATH=path, PPARALLEL_STRICT_PLUGINS="1")
    assert strict.returncode == 1
    assert re.search(r"^fail +backends .*no disk", *lines(strict))
    assert "Traceback" not in strict.stdout + strict.stderr


def lines(done: subprocess.CompletedProcess[str]) -> tuple[str, re.RegexFlag]:
    return done.stdout, re.M


def test_it_survives_a_torch_that_is_broken(tmp_path: Path, warm: WarmInterpreter) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import os\nos.abort()\n")
    done = warm.pparallel(tmp_path, "doctor", "--json", PYTHONPATH=str(tmp_path))
    checks = checks_of(done)
    assert checks["gpus"]["status"] == "fail"
    assert "torch cannot be imported" in checks["gpus"]["detail"]
    assert done.returncode == 1
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart is not there')")
    done = warm.pparallel(tmp_path, "doctor", PYTHONPATH=str(tmp_path))
    assert "torch cannot be imported: ImportError: libcudart is not there" in done.stdout
    assert done.returncode == 1


def test_a_check_that_raises_is_a_result() -> None:
    def unreadable() -> list[object]:
        raise OSError("no such\n thing")

    [check] = guarded("cores", unreadable)  # type: ignore[arg-type]
    assert (check.name, check.status) == ("cores", "warn")
    assert check.detail == "could not be checked: OSError: no such thing"
    assert check.advice


# -- this and that --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("affinity", "quota", "status"), [(8, None, "ok"), (8, 8.0, "ok"), (8, 2.5, "warn")]
)
def test_cores(affinity: int, quota: float | None, status: str) -> None:
    check = machine.judged_cores(16, affinity, quota)
    assert check.status == status
    assert ("OMP_NUM_THREADS=2" in check.advice) == (status == "warn")


def test_cores_below_one() -> None:
    assert "OMP_NUM_THREADS=1" in machine.judged_cores(8, 8, 0.5).advice


def test_memory(tmp_path: Path) -> None:
    text = "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\nHugePages_Total:       0"
    write(tmp_path, proc__meminfo=text)
    [check] = machine.memory(tmp_path)
    assert (check.status, check.detail) == ("ok", "4 GiB of 8 GiB available, no limit")
    assert machine.judged_memory(8 * GIB, GIB // 2, None).status == "warn"
    limited = machine.judged_memory(8 * GIB, 6 * GIB, (GIB, GIB - 1))
    assert limited.status == "warn"
    assert "a limit of 1 GiB" in limited.detail
    assert machine.judged_memory(8 * GIB, 6 * GIB, (GIB, 0)).status == "ok"


def test_memory_that_cannot_be_read(tmp_path: Path) -> None:
    [check] = guarded("memory", lambda: machine.memory(tmp_path))
    assert check.status == "warn"
    assert "could not be checked" in check.detail


def test_shared_memory(tmp_path: Path) -> None:
    [missing] = machine.shared_memory(tmp_path / "shm")
    assert missing.status == "warn"
    [here] = machine.shared_memory(tmp_path)
    assert str(tmp_path) in here.detail
    assert machine.judged_shared_memory(tmp_path, 8 * GIB, 4 * GIB).status == "ok"
    docker = machine.judged_shared_memory(tmp_path, 64 * 2**20, 64 * 2**20)
    assert "--shm-size" in docker.advice
    full = machine.judged_shared_memory(tmp_path, 8 * GIB, 1000)
    assert "ended programs" in full.advice


@pytest.mark.parametrize(
    ("soft", "hard", "advice"),
    [
        (None, None, ""),
        (65536, 65536, ""),
        (1024, None, "ulimit -n 65536"),
        (1024, 524288, "ulimit -n 65536"),
        (1024, 8192, "ulimit -n 8192"),
        (1024, 1024, "limits.conf"),
    ],
)
def test_open_files(soft: int | None, hard: int | None, advice: str) -> None:
    check = limits.judged_open_files(soft, hard)
    assert check.status == ("warn" if advice else "ok")
    assert advice in check.advice


def test_ephemeral_ports(tmp_path: Path) -> None:
    path = tmp_path / "range"
    path.write_text("32768\t60999\n")
    assert ports.ephemeral(path)[0].status == "ok"
    path.write_text("60900\t60999\n")
    [few] = ports.ephemeral(path)
    assert (few.status, few.detail) == ("warn", "60900 to 60999: 100")


def test_loopback() -> None:
    assert [each.status for each in ports.loopback()] == ["ok"]


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert [each.status for each in ports.rendezvous([number])] == ["warn"]
    [free] = ports.rendezvous([number])
    assert (free.name, free.status, free.detail) == (f"port {number}", "ok", "free")


def test_gpus(tmp_path: Path) -> None:
    none, driver = tmp_path / "none", tmp_path
    answer = 'import json; print("noise"); print(json.dumps({"torch": "2.9", %s}))'
    two = answer % '"cuda": "13.0", "gpus": [["H100", 85899345920], ["H100", 85899345920]]'
    [found] = gpus.gpus(driver, two)
    assert (found.status, found.detail) == (
        "ok",
        "2: H100 (80 GiB), H100 (80 GiB); torch 2.9",
    )
    cpu = answer % '"cuda": None, "gpus": []'
    assert gpus.gpus(none, cpu)[0].status == "ok"
    [unused] = gpus.gpus(driver, cpu)
    assert unused.status == "warn"
    assert "for CUDA" in unused.advice
    [blind] = gpus.gpus(driver, answer % '"cuda": "13.0", "gpus": []')
    assert "nvidia-smi" in blind.advice
    [broken] = gpus.gpus(none, "import sys; sys.exit(3)")
    assert (broken.status, broken.detail) == ("fail", "torch cannot be imported: exit code 3")


def test_a_torch_that_takes_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "PATIENCE", 0.2)
    [slow] = gpus.gpus(tmp_path, "import threading; threading.Event().wait()")
    assert slow.status == "fail"
    assert "not imported within" in slow.detail


def test_no_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert gpus.gpus(tmp_path / "none")[0].status == "ok"
    [unused] = gpus.gpus(tmp_path)
    assert unused.status == "warn"
    assert "pparallel[torch]" in unused.advice


def test_requirements() -> None:
    needed, optional = software.requirements(
        [
            "msgpack>=1",
            "typing-extensions (>=4.12)",
            "torch>=2.4; extra == 'torch'",
            'cloudpickle>=3; extra == "cloudpickle"',
            "pparallel[torch]; extra == 'all'",
            "mypy; extra == 'dev'",
            "msgpack; extra == 'more'",
        ]
    )
    assert needed == ["msgpack", "typing-extensions"]
    assert optional == ["torch", "cloudpickle"]


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["msgpack", "nobody-has-this", "nor-this; extra == 'torch'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    found = {each.name: each for each in software.libraries()}
    assert found["msgpack"].status == "ok"
    assert found["nobody-has-this"].status == "fail"
    assert found["nobody-has-this"].advice == "pip install nobody-has-this"
    assert (found["nor-this"].status, found["nor-this"].detail) == ("ok", "not installed")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (64 * 2**20, "64 MiB"), (2**42, "4 TiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
