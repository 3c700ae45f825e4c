"""The command line; each command imports what it needs when it runs, so that help is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="pparallel",
    help="Run one parallel PyTorch program on whichever backends its config names.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

keys = typer.Typer(
    help="Secrets of members that are started by hand.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(keys, name="keys")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]


def main() -> None:
    """Run the command that the process was started with."""
    app(prog_name="pparallel")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pparallel {version('pparallel')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="The job: a .yaml, .toml or .json file.")
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="What each member runs, as module:function; by default the config's.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Override a key: pool.size=8, pool=process."
        ),
    ] = None,
    as_json: Json = False,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Write lines of text instead of drawing; so it is anyway outside a terminal.",
        ),
    ] = False,
) -> None:
    """Launch the members of a job and run its target in each.

    In a terminal, one live line per member tells its state, steps, rate and what the target
    reports; what members print and log stands above.

    Exit codes: 0 done, 1 the job failed, 2 the config is wrong, 130 interrupted.
    """
    try:
        from pparallel.cli.run import run_job

        run_job(config, target, set_ or [], as_json=as_json, plain=plain)
    except KeyboardInterrupt:  # before the job began, or after it ended; typer would exit with 1
        raise typer.Exit(130) from None


@app.command()
def backends(as_json: Json = False) -> None:
    """List the installed backends and the broken plugins."""
    from pparallel.cli.backends import show_backends

    show_backends(as_json=as_json)


@app.command("new-plugin")
def new_plugin(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name, such as json-lines; see below.")
    ],
    interface: Annotated[
        list[str] | None,
        typer.Option(
            "--interface",
            metavar="INTERFACE",
            help="pool or ordered_server; may be given again; by default both.",
        ),
    ] = None,
    directory: Annotated[
        Path,
        typer.Option("--directory", metavar="DIR", help="Where its folder is made; by default ."),
    ] = Path(),
) -> None:
    """Write a plugin to begin with: a distribution whose backends pass the suites.

    NAME json-lines gives the folder and distribution pparallel-json-lines, the package
    pparallel_json_lines, and backends that configs call json_lines.

    Exit codes: 0 done, 2 nothing was written.
    """
    from pparallel.cli.new_plugin import write_plugin

    write_plugin(name, interface or [], directory)


@app.command()
def schema(
    indent: Annotated[
        int, typer.Option("--indent", min=0, max=8, help="Spaces for each level; 0: one line.")
    ] = 2,
) -> None:
    """Print the JSON Schema of a config, with the backends that are installed.

    Editors check and complete configs by it.
    """
    from pparallel.cli.schema import show_schema

    show_schema(indent)


@app.command()
def doctor(
    as_json: Json = False,
    port: Annotated[
        list[int] | None,
        typer.Option(
            "--port", min=1, max=65535, help="A port that is to be free; by default 29500 and 9100."
        ),
    ] = None,
) -> None:
    """Check this machine: cores, memory, limits, ports, GPUs, versions, plugins.

    Exit codes: 0 unless a check fails, then 1; a warning is no failure.
    """
    from pparallel.cli.doctor import show_checks

    show_checks(port or None, as_json=as_json)


@keys.command("new")
def new_keys(
    members: Annotated[
        str, typer.Option("--members", metavar="A,B,C", help="The names of all members.")
    ],
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Where to write the files.")
    ] = Path(),
    transport: Annotated[
        str, typer.Option("--transport", metavar="BACKEND", help="What the keys are for.")
    ] = "zmq",
    as_json: Json = False,
) -> None:
    """Write a key file for each member, to be read by that member alone.

    Members that pparallel launches need none: they are given fresh keys.

    Exit codes: 0 done, 2 nothing was written.
    """
    from pparallel.cli.keys import write_keys

    write_keys(members, directory, transport, as_json=as_json)
