"""Files with the secrets of one member each, for members that are started by hand."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from pparallel.errors import ConfigError

_FORM = 1


def write(path: Path, member: str, keys: Mapping[str, SecretStr]) -> None:
    """Write the secrets of *member* to a new file that only this user can read.

    Raises:
        FileExistsError: there is such a file already: it may hold the only copy of a key.
        OSError: it cannot be written, as on a full disk; nothing of it is left.
    """
    told = {name: each.get_secret_value() for name, each in keys.items()}
    text = json.dumps({"pparallel_keys": _FORM, "member": member, "keys": told}, indent=1)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
    except OSError as error:
        path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def read(path: Path, member: str) -> dict[str, SecretStr]:
    """Return the secrets of *member* that a file holds.

    Raises:
        ConfigError: there is no such file, others can read it, or it is not this member's. What
            stands in it is not shown.
    """
    try:
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(2**24)
    except OSError as error:
        message = f"{path}: {error.strerror}; write key files with 'pparallel keys new'"
        raise ConfigError(message) from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{path} can be read by others: type 'chmod 600 {path}'")
    try:
        found = json.loads(text)
        whose, keys = found["member"], found["keys"]
        if found["pparallel_keys"] != _FORM:
            raise ValueError
        secrets = {str(name): SecretStr(str(each)) for name, each in keys.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"{path} is no key file: write one with 'pparallel keys new'"
        raise ConfigError(message) from None
    if whose != member:
        raise ConfigError(f"{path} holds the keys of member {whose!r}, and this is {member!r}")
    return secrets
