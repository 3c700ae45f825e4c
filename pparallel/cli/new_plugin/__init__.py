"""``pparallel new-plugin``: a distribution of one's own to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from pparallel.cli.new_plugin.names import Names, check_name, check_offered, names_of
from pparallel.cli.new_plugin.template import INTERFACES, files
from pparallel.cli.new_plugin.writing import write_all
from pparallel.errors import ConfigError, did_you_mean


def write_plugin(name: str, interfaces: Sequence[str], directory: Path) -> None:
    """Write a plugin called *name* into a folder of its own in *directory*, and say what is next.

    Raises:
        typer.Exit: nothing was written.
    """
    try:
        chosen = _chosen(interfaces)
        check_name(name)
        names = names_of(name)
        check_offered(names, chosen)
        folder = directory / names.distribution
        contents = files(names, chosen)
        write_all(folder, contents)
    except (ConfigError, OSError) as error:
        typer.echo(f"pparallel: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(_next(folder, names, chosen, sorted(contents)))


def _chosen(interfaces: Sequence[str]) -> list[str]:
    for each in interfaces:
        if each not in INTERFACES:
            message = (
                f"no template for interface {each!r}; there are {', '.join(INTERFACES)}."
                f"{did_you_mean(each, INTERFACES)} For another interface write one of these,"
                " and put a class of your interface in its place"
            )
            raise ConfigError(message)
    return [each for each in INTERFACES if each in interfaces] or list(INTERFACES)


def _next(folder: Path, names: Names, interfaces: Sequence[str], paths: Sequence[str]) -> str:
    plural = "s" if len(interfaces) > 1 else ""
    lines = [f"wrote {folder}: backend {names.backend!r} of interface{plural} "]
    lines[0] += ", ".join(interfaces)
    lines += [f"  {each}" for each in paths]
    lines += [
        "next:",
        f"  cd {folder}",
        "  pip install -e '.[dev]'",
        "  pytest                # the suites pass: keep it so while you replace what it does",
        "  pparallel backends    # shows it",
        "then make your own:",
    ]
    for each in interfaces:
        lines.append(f"  {names.package}/{each}_config.py, {names.package}/{each}.py")
    lines += [
        "  README.md, and the description in pyproject.toml",
        "the guide: the page 'Write a backend' of pparallel's documentation",
    ]
    return "\n".join(lines)
