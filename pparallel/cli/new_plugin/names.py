"""What the parts of a plugin are called, after the one name that its author gives."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from typing import NamedTuple

from pparallel.errors import ConfigError
from pparallel.registry import default_registry

_PREFIX = re.compile(r"^pparallel[-_]?")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 26  #: so that no line of what is written is too long


class Names(NamedTuple):
    """The names of a plugin.

    Attributes:
        distribution: what pip installs.
        package: what Python imports.
        prefix: what its classes begin with.
        backend: what configs call its backends.
    """

    distribution: str
    package: str
    prefix: str
    backend: str


def names_of(name: str) -> Names:
    """Return what is called how in a plugin called *name*."""
    words = name.split("-")
    backend = "_".join(words)
    prefix = "".join(word.capitalize() for word in words)
    return Names(f"pparallel-{name}", f"pparallel_{backend}", prefix, backend)


def check_name(name: str) -> None:
    """Refuse what cannot name a plugin.

    Raises:
        ConfigError: with a name to use instead, where one is near.
    """
    if _NAME.fullmatch(name) and not _PREFIX.match(name) and len(name) <= _LONGEST:
        return
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
    near = _PREFIX.sub("", plain)[:_LONGEST].rstrip("-")
    hint = f" For example: {near}" if _NAME.fullmatch(near) else ""
    message = (
        f"{name!r} cannot name a plugin: write small letters and digits, with '-' between words,"
        f" beginning with a letter, at most {_LONGEST}, and without 'pparallel', which is put"
        f" before it.{hint}"
    )
    raise ConfigError(message)


def check_offered(names: Names, interfaces: Iterable[str]) -> None:
    """Refuse names that something installed has already.

    Raises:
        ConfigError: what has it is named.
    """
    for each in default_registry().offers():
        if each.name == names.backend and each.interface in interfaces:
            message = (
                f"{each.package or 'a plugin'} offers {each.interface} backend {each.name!r}"
                " already, and two of one name refuse each other: choose another name"
            )
            raise ConfigError(message)
    if importlib.util.find_spec(names.package) is not None:
        message = f"a package {names.package} is installed already: choose another name"
        raise ConfigError(message)
