"""What a child finds: its environment, streams, signals, flags, however the program was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_children import HERE, METHODS, TARGET, each_method, outcome

from pparallel.runtime.processes import StartMethod, child_environment
from pparallel.testing.patience import PATIENCE


@each_method
def test_the_environment_less_what_is_said_to_this_process_alone(
    method: StartMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "PPARALLEL__POOL__SIZE")
    for each in (*alone, "TORCHELASTIC_RUN_ID", "GROUP_RANK", "TEA"):
        monkeypatch.setenv(each, "1")
    monkeypatch.setenv("ODD", os.fsdecode(b"\xff=\n"))
    code = """
import os
say(sorted(set(os.environ) & {names!r}), os.environb[b"ODD"], os.environ.get("MADE_LATER"))
say(__import__("subprocess").check_output(["env"]).count(b"TEA=1"))
""".format(names={*alone, "TORCHELASTIC_RUN_ID", "GROUP_RANK", "TEA"})
    assert outcome(code, method=method)[0] == [r"['TEA'] b'\xff=\n' None", "1"]
    assert "RANK" not in child_environment()
    monkeypatch.setenv("MADE_LATER", "now")  # the fork server is older
    monkeypatch.delenv("TEA")
    said = outcome(code, method=method)[0]
    assert said == [r"[] b'\xff=\n' now", "0"]


@each_method
def test_an_environment_of_its_own(method: StartMethod) -> None:
    code = "import os; os.environ.pop('LC_CTYPE', 0); say(dict(os.environ)); say(os.getenv('HOME'))"
    said, ended = outcome(code, method=method, environment={"COLOUR": "grün"})
    assert said == ["{'COLOUR': 'grün'}", "None"]
    assert ended.code == 0


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the setting is one of x86")
@pytest.mark.parametrize(
    ("method", "own", "started"),
    [
        ("forkserver", None, "glibc.cpu.x86_non_temporal_threshold=262144"),
        (
            "spawn",
            "glibc.malloc.arena_max=3",
            "glibc.malloc.arena_max=3:glibc.cpu.x86_non_temporal_threshold=262144",
        ),
        (
            "forkserver",
            "glibc.cpu.x86_non_temporal_threshold=8388608",
            "glibc.cpu.x86_non_temporal_threshold=8388608",
        ),
    ],
)
def test_large_copies_go_past_the_caches(
    method: StartMethod, own: str | None, started: str, tmp_path: Path
) -> None:
    code = f"""
import os
process = os.getppid() if {method!r} == "forkserver" else "self"  # whose memory it has
started = open(f"/proc/{{process}}/environ", "rb").read()
name = b"GLIBC_TUNABLES"
# The C library ends each setting where it finds it.
started = started.replace(b"\\0glibc", b":glibc").split(b"\\0")
say([each for each in started if each.startswith(name)], os.environ.get(name.decode()))
say(__import__("subprocess").check_output(["env"]).count(name))
"""
    script = tmp_path / "program.py"
    script.write_text(
        f"from process_children import outcome\nprint(outcome({code!r}, method={method!r})[0])\n"
    )
    environment = {**os.environ, "PYTHONPATH": HERE}
    environment.pop("GLIBC_TUNABLES", None)
    if own is not None:
        environment["GLIBC_TUNABLES"] = own
    command = [sys.executable, str(script)]
    said = subprocess.run(
        command, env=environment, timeout=PATIENCE * 3, check=True, capture_output=True, text=True
    ).stdout
    seen = [f"GLIBC_TUNABLES={started}".encode()]
    assert said.strip() == str([f"{seen} {own}", str(int(own is not None))])


@each_method
def test_folder_path_and_arguments_are_as_they_are_now(
    method: StartMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_just_now.py").write_text("value = 7\n")
    code = (
        "import os, sys; say(os.getcwd()); say(sys.argv); import made_just_now as m; say(m.value)"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.setattr(sys, "argv", ["prog", "a b"])
    assert outcome(code, method=method)[0] == [str(tmp_path), "['prog', 'a b']", "7"]


@each_method
def test_a_folder_that_was_removed(
    method: StartMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code = "import os; say('runs'); say(os.readlink('/proc/self/cwd'))"
    assert outcome(code, method=method)[0] == ["runs", f"{gone} (deleted)"]


@each_method
def test_affinity_is_as_it_is_now(method: StartMethod) -> None:
    allowed = os.sched_getaffinity(0)
    code = "import os; say(sorted(os.sched_getaffinity(0)))"
    assert outcome(code, method=method)[0] == [str(sorted(allowed))]
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert outcome(code, method=method)[0] == [str([min(allowed)])]
    finally:
        os.sched_setaffinity(0, allowed)


@each_method
def test_standard_streams(method: StartMethod, capfd: pytest.CaptureFixture[str]) -> None:
    code = """
import os, sys
say(repr(sys.stdin.read()), os.readlink("/proc/self/fd/0"), sys.stdin.fileno())
os.write(1, b"by number\\n")
print("to stderr", file=sys.stderr)
"""
    assert outcome(code, method=method)[0] == ["'' /dev/null 0"]
    shown = capfd.readouterr()
    assert "by number" in shown.out
    assert "to stderr" in shown.err


def test_what_is_buffered_is_written_once(tmp_path: Path) -> None:
    text = f"""
import sys
from pparallel.runtime.processes import start
print("parent", end=" ")
child = start({TARGET!r}, b"print('child', end=' ')", [0], method="fork")
assert child.ended(20).code == 0
print("parent")
"""
    done = run(text)
    assert done.stdout.split() == ["parent", "child", "parent"]


@each_method
def test_signals_are_as_in_a_new_program(method: StartMethod) -> None:
    code = """
import signal
handlers = [signal.getsignal(getattr(signal, each)) for each in ("SIGTERM", "SIGUSR1", "SIGCHLD")]
say(*(each is signal.SIG_DFL for each in handlers))
say(callable(signal.getsignal(signal.SIGINT)), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
say(signal.set_wakeup_fd(-1))
import subprocess, sys
child = "import signal; print(signal.getsignal(2) is signal.default_int_handler)"
say(subprocess.check_output([sys.executable, "-c", child]).decode().strip())
"""
    before = [signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGUSR1)]
    ignored = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer)
    try:
        said = outcome(code, method=method)[0]
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, ignored)
        for number, handler in zip((signal.SIGTERM, signal.SIGUSR1), before, strict=True):
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
    assert said == ["True True True", "True set()", "-1", "True"]


@each_method
def test_main_is_empty_and_random_numbers_differ(method: StartMethod) -> None:
    code = """
import sys
say("" if "copy" in fds else sorted(k for k in vars(sys.modules["__main__"]) if k[:2] != "__"))
import random
say(random.random())
"""
    first, again = (outcome(code, method=method)[0] for _ in range(2))
    assert first[1] != again[1]
    assert method == "fork" or first[0] == "[]"


def test_atexit_of_the_parent_is_not_the_childs() -> None:
    text = f"""
import atexit, concurrent.futures
from pparallel.runtime.processes import start
atexit.register(print, "by the parent")
with concurrent.futures.ThreadPoolExecutor(1) as threads:
    for method in {METHODS!r}:
        child = threads.submit(start, {TARGET!r}, b"pass", [0], method=method).result()
        assert child.ended(20).code == 0
"""
    assert run(text).stdout == "by the parent\n"


def test_what_a_preloaded_module_has_made_is_not_finalized_by_the_first_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import tempfile\nfolder = tempfile.TemporaryDirectory()\n"
    (tmp_path / "has_a_folder.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = "import os, has_a_folder as h; say(os.path.isdir(h.folder.name))"
    for _ in range(2):
        assert outcome(code, preload=["has_a_folder"])[0] == ["True"]


# -- how the program was started ------------------------------------------------------------------

ALL = f"""
from pparallel.runtime.processes import start
code = b'''import sys
print(sys.flags.optimize, sys.flags.isolated, sys.flags.safe_path, sys.warnoptions, sys.stdin)'''
for method in {METHODS!r}:
    child = start({TARGET!r}, code, [0], method=method)
    if child.ended(20).code != 0:
        raise SystemExit(child.ended())
    child.close()
"""


def run(text: str, *args: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program given as text; its errors are the test's."""
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        [sys.executable, *(args or ("-c", text))],
        env={**os.environ, "PYTHONPATH": HERE},
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
        check=False,
        **options,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (("-O", "-P"), "1 0 True []"),
        (("-I", "-W", "error", "-OO"), "2 1 True ['error']"),
    ],
)
def test_flags_are_handed_on(flags: tuple[str, ...], shown: str) -> None:
    insert = f"import sys; sys.path.insert(0, {HERE!r})\n"
    lines = run("", *flags, "-c", insert + ALL).stdout.splitlines()
    assert [each.partition(" <")[0] for each in lines] == [shown] * 3


def test_a_program_from_standard_input() -> None:
    assert len(run("", "-", input=ALL).stdout.splitlines()) == 3


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('once', flush=True)\n" + ALL)
    assert run("", str(script)).stdout.count("once") == 1


def test_the_prompt() -> None:
    lines = ALL.replace("    child.close()\n", "    child.close()\n\n")
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=lines,
        env={**os.environ, "PYTHONPATH": HERE, "PYTHON_BASIC_REPL": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
        check=False,
    )
    assert done.stdout.count("0 0 False []") == 3, done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_whose_standard_streams_are_closed(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = f"import os; os.write(fds[0], b'x'); open({str(told)!r}, 'a').write('told ')"
    text = f"""
import os
from pparallel.runtime.processes import start
reader, writer = os.pipe()
for method in {METHODS!r}:
    child = start({TARGET!r}, {code!r}.encode(), [writer], method=method)
    exit = child.ended(20)
    child.close()
    open({str(told)!r}, "a").write(f"{{exit.code}} {{os.read(reader, 1)}} ")
"""
    environment = {**os.environ, "PYTHONPATH": HERE}
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, text]
    assert (
        subprocess.run(command, env=environment, timeout=PATIENCE * 3, check=False).returncode == 0
    )
    assert told.read_text() == "told 0 b'x' " * 3
