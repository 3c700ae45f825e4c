"""The token without which nobody uses a cluster of our own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ray._raylet import (  # type: ignore[attr-defined]  # it is compiled
    AuthenticationTokenLoader,
    Config,
)

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


@contextmanager
def token_required() -> Iterator[None]:
    """Have what Ray starts inside ask for a token.

    Ray's own way to make one leaves it in the home directory, readable for all, for every cluster
    to come. Ours is for this cluster alone: its processes get it by their environment, as those do
    that this program starts. A mode or token of the user's own is left as it is.
    """
    if os.environ.get(_MODE) is not None:
        read_again()
        yield
        return
    wanted = {_MODE: "token"}
    if not AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
        wanted[_TOKEN] = secrets.token_hex(32)
    with _set(wanted):
        yield


@contextmanager
def _set(wanted: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(wanted)
    read_again()
    try:
        yield
    finally:
        for name in wanted:
            os.environ.pop(name, None)
        read_again()


def read_again() -> None:
    """Have Ray take its mode and token from the environment as it is now.

    It does so by itself when it is imported, and not once more.
    """
    # In this order: a thread of Ray's that still ends would miss its token in mode "token".
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
