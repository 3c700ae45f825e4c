"""``pparallel keys``: secrets of members that are started by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import typer

from pparallel.errors import PparallelError
from pparallel.interfaces.transport import Transport
from pparallel.registry import default_registry
from pparallel.runtime import key_files


def write_keys(members: str, directory: Path, transport: str, *, as_json: bool) -> None:
    """Write a key file for each of *members*, and print which is for whom.

    Raises:
        typer.Exit: nothing was written; it was said why.
    """
    names = [name.strip() for name in members.split(",")]
    files = {name: directory / f"{name}.keys" for name in names}
    if problem := _problem(names, files):
        raise _refused(problem)
    try:
        keys = _fresh(transport, names)
        if set(keys) != set(names):
            raise _refused(f"transport {transport!r} has no keys to give")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except PparallelError as error:
        raise _refused(str(error)) from None
    except OSError as error:
        raise _refused(f"{directory}: {error.strerror}") from None
    _write(files, keys)
    typer.echo(_json(files, transport) if as_json else _text(files, transport))


def _problem(names: list[str], files: dict[str, Path]) -> str:
    """Return what is wrong with what was asked, an empty text if nothing is."""
    if len(names) < 2 or not all(names):
        return "give the names of two or more members: --members ps,worker-0,worker-1"
    if len(files) < len(names):
        return "two members have the same name: names are given once"
    if odd := [name for name in names if "/" in name or name.startswith(".")]:
        return f"{odd[0]!r} cannot be the name of a file"
    there = [str(path) for path in files.values() if path.exists() or path.is_symlink()]
    if there:
        return f"{there[0]} is there already and may be in use: take another directory"
    return ""


def _fresh(transport: str, names: list[str]) -> Any:
    """Return new keys by name, such as a launched job is given."""
    registry = default_registry()
    cls = cast("type[Transport]", registry.load(registry.find("transport", transport)))
    config = registry.config("transport", transport)
    with cls.meeting(config.model_validate({"backend": transport}), names) as meeting:
        return meeting.keys


def _write(files: dict[str, Path], keys: Any) -> None:
    written: list[Path] = []
    try:
        for name, path in files.items():
            key_files.write(path, name, keys[name])
            written.append(path)
    except OSError as error:
        for each in written:
            each.unlink()
        raise _refused(f"{error.filename}: {error.strerror}") from None


def _refused(message: str) -> typer.Exit:
    typer.echo(f"pparallel: {message}", err=True)
    return typer.Exit(2)


def _json(files: dict[str, Path], transport: str) -> str:
    told = {name: str(path) for name, path in files.items()}
    return json.dumps({"transport": transport, "files": told}, indent=2)


def _text(files: dict[str, Path], transport: str) -> str:
    return "\n".join(
        [
            *(f"{name}: {path}" for name, path in files.items()),
            "",
            "Bring each member its own file, by a way that nobody can read, and no other's.",
            "In the config of each member name it:",
            "",
            f"  transport: {{backend: {transport}, address: 'tcp://HOST:PORT', keys: FILE}}",
        ]
    )
