"""``pparallel backends``: what is installed, and what could not be loaded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import typer

from pparallel.cli.columns import aligned
from pparallel.errors import ConfigError
from pparallel.registry import Offer, default_registry

COLUMNS = ("INTERFACE", "NAME", "PACKAGE", "VERSION", "API", "FEATURES", "STATUS")


def show_backends(*, as_json: bool) -> None:
    """Print every backend that an installed plugin offers, and the plugins that are broken.

    Raises:
        typer.Exit: a plugin is broken and ``PPARALLEL_STRICT_PLUGINS`` makes that fatal.
    """
    try:
        offers = default_registry().offers()
    except ConfigError as error:
        typer.echo(f"pparallel: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(_json(offers) if as_json else _text(offers))


def _json(offers: Sequence[Offer]) -> str:
    return json.dumps([dataclasses.asdict(each) for each in offers], indent=2)


def _text(offers: Sequence[Offer]) -> str:
    broken = [each for each in offers if each.status == "broken"]
    table = aligned([COLUMNS, *(_row(each) for each in offers if each.interface)])
    lines = [f"  {each.name} ({each.package} {each.version}): {_why(each)}" for each in broken]
    return "\n".join([*table, *(["", "broken:"] if broken else []), *lines])


def _row(offer: Offer) -> tuple[str, ...]:
    told = offer.detail and offer.status != "broken"  # what is broken is explained below the table
    status = f"{offer.status}: {offer.detail}" if told else offer.status
    api = "-" if offer.interface_version is None else str(offer.interface_version)
    features = ", ".join(offer.features) or "-"
    where = offer.package or "-", offer.version or "-"
    return offer.interface, offer.name, *where, api, features, status


def _why(offer: Offer) -> str:
    """Return the last line of what went wrong, which for a traceback is the error itself."""
    which = f"{offer.interface} backend " if offer.interface else ""
    return f"{which}{offer.detail.splitlines()[-1] if offer.detail else offer.status}"
