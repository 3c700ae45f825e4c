"""What the ordered server in a file says no to, and how."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlite_programs import server_at

from pparallel.errors import ConfigError, SerializationError
from pparallel_serializers import SafeSerializerConfig
from pparallel_servers.sqlite import values

PROGRAMS = Path(__file__).parents[1] / "helpers" / "sqlite_programs.py"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "values.db"


def store(path: Path, **options: Any) -> None:
    with server_at(path, **options) as server:
        assert server.push("k", "kept", 1, None)


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for each in statements:
            connection.execute(each)
        connection.commit()


# -- files that are not ours ------------------------------------------------------------------


def refused(path: Path, message: str, **options: Any) -> None:
    with (
        pytest.raises(ConfigError, match=rf"ordered_server\.path: .*{message}"),
        server_at(path, **options),
    ):
        pass


def test_a_file_that_is_not_of_sqlite(path: Path) -> None:
    path.write_text("a diary\n" * 1000)
    refused(path, r"values\.db is no sqlite file: give the path of a new file")
    assert path.read_text() == "a diary\n" * 1000


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE diary (day, text)", "INSERT INTO diary VALUES (1, 'rain')"),
        ("PRAGMA application_id = 77",),
        ("PRAGMA user_version = 1",),
        ("PRAGMA journal_mode = WAL", "CREATE TABLE held (id, key)"),
    ],
)
def test_a_file_of_another_program(path: Path, statements: tuple[str, ...]) -> None:
    change(path, *statements)
    before = path.read_bytes()
    refused(path, "is an sqlite file of another program")
    assert path.read_bytes() == before


def test_a_file_of_a_later_version(path: Path) -> None:
    store(path)
    change(path, "PRAGMA user_version = 7")
    refused(path, "has format 7, and this pparallel reads format 1: upgrade pparallel")


def test_an_empty_file_is_taken(path: Path) -> None:
    path.touch()
    store(path)
    with server_at(path) as server:
        assert server.pull("k") == ("kept", 1)


def test_paths_that_lead_to_no_file(tmp_path: Path) -> None:
    refused(tmp_path, "is a folder: give the path of a file")
    refused(tmp_path / "absent" / "values.db", "there is no folder .*absent")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "is no regular file")


def test_a_damaged_file(path: Path) -> None:
    with server_at(path) as server:
        assert server.push("k", bytes(200_000), 1, None)
    with path.open("r+b") as file:
        file.seek(1 << 15)
        file.write(b"x" * (6 << 15))
    with (
        pytest.raises(OSError, match=r"the file is damaged.*values\.db"),
        server_at(path) as server,
    ):
        server.pull("k")


ROW = r"the file is damaged.*row 1 of the table 'held': .*WHERE id = 1.*values\.db"


@pytest.mark.parametrize(
    "key",
    [
        "x'730200000000000000c328'",  # no UTF-8
        "x'7305000000000000006b'",  # shorter than it says
        "x'73010000000000000061'||x'00'",
        "x''",
        "'te' || x'ff'",
        "7",
    ],
)
def test_a_damaged_name_is_told_with_its_row(path: Path, key: str) -> None:
    store(path)
    change(path, f"UPDATE held SET key = {key}")
    with server_at(path) as server, pytest.raises(OSError, match=ROW) as caught:
        server.keys()
    assert caught.value.errno == errno.EIO
    change(path, "DELETE FROM held")
    store(path)
    change(path, f"UPDATE held SET version = {key}")
    with server_at(path) as server:
        for use in (
            lambda: server.versions("k"),
            lambda: server.pull("k"),
            lambda: server.wait("k"),
        ):
            with pytest.raises(OSError, match=ROW):
                use()
        assert server.keys() == ["k"]
        assert not server.push("k", 2, 2, 1)
        assert server.delete("k")
        assert server.push("k", 2, 2, 1)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE held SET lengths = x'01'",
        "UPDATE held SET lengths = 'text'",
        "UPDATE held SET lengths = x'00000000000000ff'",
        "UPDATE held SET data = NULL",
        "UPDATE held SET data = substr(data, 2)",
        "UPDATE held SET data = data || x'00'",
        "UPDATE held SET data = 'text'",
        "DELETE FROM piece WHERE id = (SELECT max(id) FROM piece)",
        "UPDATE piece SET data = substr(data, 2)",
        "UPDATE piece SET data = 'text'",
    ],
)
def test_a_damaged_value_is_told_with_its_row(path: Path, damage: str) -> None:
    value = bytes(values.PIECE * 2 if "piece" in damage else 10)
    with server_at(path) as server:
        assert server.push("k", value, 1, None)
    change(path, damage)
    with server_at(path) as server:
        for into in (None, bytearray(10)):
            with pytest.raises(OSError, match=ROW):
                server.pull("k", into=into)
        assert server.push("k", "new", 2, 1)
        assert server.pull("k") == ("new", 2)


def test_a_value_that_its_serializer_cannot_read_is_told_with_its_row(path: Path) -> None:
    store(path)
    change(path, "UPDATE held SET data = zeroblob(length(data))")
    with server_at(path) as server, pytest.raises(SerializationError) as caught:
        server.pull("k")
    assert caught.value.__notes__ == [f"It is the value in row 1 of the table 'held' in {path}."]


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE piece",
        "ALTER TABLE held DROP COLUMN data",
        "DROP TABLE about",
        "UPDATE held SET id = 1 << 50",
    ],
)
def test_tables_of_another_kind_are_a_damaged_file(path: Path, damage: str) -> None:
    with server_at(path) as server:
        assert server.push("k", bytes(values.PIECE), 1, None)
    change(path, damage)
    with (
        pytest.raises(OSError, match=r"the file is damaged.*values\.db"),
        server_at(path) as server,
    ):
        server.pull("k")


def test_a_table_whose_name_is_damaged_is_told(path: Path) -> None:
    """sqlite quotes the name in its message, which is then no UTF-8."""
    store(path)
    content = path.read_bytes().replace(b"TABLE held (", b"TABLE held ,")
    path.write_bytes(content.replace(b"tableheld", b"table\xff\xfe\xfd\xfc"))
    with pytest.raises(OSError, match=r"the file is damaged.*values\.db"), server_at(path):
        pass


@pytest.mark.parametrize("replace", [False, True])
def test_a_file_that_is_gone(path: Path, replace: bool) -> None:
    with server_at(path) as server:
        assert server.push("k", 1, 1, None)
        for each in path.parent.glob("values.db*"):
            each.unlink()
        if replace:
            store(path)
        for use in (lambda: server.push("k", 2, 2, 1), lambda: server.pull("k"), server.keys):
            with pytest.raises(FileNotFoundError, match=r"removed or replaced.*values\.db"):
                use()
        with pytest.raises(FileNotFoundError, match="removed or replaced"):
            server.wait("k", 1)


# -- what cannot be written -------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter."""
    made = Path(tempfile.mkdtemp(prefix="pparallel-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def run(*arguments: object, before: tuple[str, ...] = ()) -> str:
    """Run one of the programs; return what it prints."""
    command = [*before, sys.executable, str(PROGRAMS), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_read_only_file(folder: Path, tmp_path: Path) -> None:
    path = folder / "values.db"
    store(path)
    path.chmod(0o444)
    folder.chmod(0o777)
    said = run("open_as_somebody", path, tmp_path)
    assert said.startswith("PermissionError: [Errno 13] it and its folder must be writable"), said
    assert said.endswith("values.db'")


def test_a_read_only_folder(folder: Path, tmp_path: Path) -> None:
    store(folder / "values.db")
    (folder / "values.db").chmod(0o666)
    folder.chmod(0o555)
    for name in ("values.db", "new.db"):
        said = run("open_as_somebody", folder / name, tmp_path)
        assert said.startswith("PermissionError: [Errno 13] it and its folder must be"), said
    folder.chmod(0o755)


@pytest.fixture(scope="session")
def own_mounts() -> tuple[str, ...]:
    """What starts a program that may mount what nobody else sees."""
    for choice in (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")):
        command = (*choice, "mount", "-t", "tmpfs", "tmpfs", "/mnt")
        if (
            shutil.which("unshare")
            and not subprocess.run(command, capture_output=True, check=False).returncode
        ):
            return choice
    pytest.skip("this user may not mount anything, not even for one process alone")


def test_a_read_only_file_system(tmp_path: Path, own_mounts: tuple[str, ...]) -> None:
    said = run("read_only_system", tmp_path, before=own_mounts)
    assert said.startswith("OSError: [Errno 30] it is on a read-only file system"), said


def test_a_full_disk(tmp_path: Path, own_mounts: tuple[str, ...]) -> None:
    pushing, opening = run("full_disk", tmp_path, before=own_mounts).splitlines()
    for said in (pushing, opening):
        assert said.startswith("OSError: [Errno 28] the disk is full: nothing was changed"), said


def test_a_file_that_others_keep_locked(path: Path) -> None:
    store(path)
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as other,
        server_at(path, timeout=0.05) as server,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError, match=r"others have kept it locked for 0\.05 s"):
            server.push("k", 2, 2, 1)
        assert server.pull("k") == ("kept", 1)
        other.execute("ROLLBACK")
        assert server.push("k", 2, 2, 1)


def test_processes_take_turns_at_the_log(path: Path) -> None:
    with server_at(path, timeout=0.05) as server, Path(f"{path}-wal").open() as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"others have kept it locked for 0\.05 s"):
            server.push("k", 1, 1, None)
        assert server.keys() == []
        fcntl.flock(log, fcntl.LOCK_UN)
        assert server.push("k", 1, 1, None)


def test_a_value_that_is_too_large(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server_at(path, serializer=SafeSerializerConfig(max_bytes=10_000)) as server:
        with pytest.raises(SerializationError, match="more than 10000 bytes"):
            server.push("k", bytes(20_000), 1, None)
        assert server.keys() == []
    monkeypatch.setattr(values, "SPAN", 2)  # the true limit is 256 GiB
    with server_at(path) as server:
        with pytest.raises(ValueError, match="at most 524,288 bytes in a file, and this 60"):
            server.push("k", bytes(600_000), 1, None)
        assert server.keys() == []
        assert server.push("k", bytes(500_000), 1, None)


def test_a_process_without_descriptors(tmp_path: Path) -> None:
    said = run("without_descriptors", tmp_path / "values.db")
    assert said.startswith("OSError: [Errno 24] it cannot be opened: Too many open files"), said
