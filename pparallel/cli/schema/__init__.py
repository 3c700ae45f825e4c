"""``pparallel schema``: what a config may hold, for editors and checkers."""

from __future__ import annotations

import json

import typer

from pparallel.errors import ConfigError


def show_schema(indent: int) -> None:
    """Print the JSON Schema of a job's config, with the backends that are installed.

    Args:
        indent: spaces for each level; 0: all in one line.

    Raises:
        typer.Exit: a plugin is broken and ``PPARALLEL_STRICT_PLUGINS`` makes that fatal.
    """
    from pparallel.cli.schema.generator import job_schema
    from pparallel.registry import default_registry

    try:
        schema = job_schema(default_registry())
    except ConfigError as error:
        typer.echo(f"pparallel: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(json.dumps(schema, indent=indent or None, ensure_ascii=False))
