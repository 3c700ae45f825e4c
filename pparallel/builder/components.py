"""The components of one runtime that are open, and the order in which they close."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

from pparallel.builder.assembly import Assembly
from pparallel.interfaces.pool import Pool
from pparallel.interfaces.resource import Resource

logger = logging.getLogger(__name__)


class Components:
    """Opens what an assembly has made, parts first, and closes it, clients before hosts."""

    def __init__(self, assembly: Assembly) -> None:
        self._made = assembly.made
        self._parts = assembly.parts
        self._opened: list[str] = []

    def open(self) -> None:
        """Open what was made and is not open yet."""
        for name, component in list(self._made.items()):
            if isinstance(component, Resource) and name not in self._opened:
                component.__enter__()
                self._opened.append(name)

    def depart(self) -> None:
        """Have all that is open tell the others that this member is done."""
        for name in reversed(self._opened):
            self._made[name].depart()

    def close(self, between: Callable[[], None]) -> None:
        """Close in reverse order: what only calls others, then *between*, then the hosts."""
        hosts = self._hosts()
        with ExitStack() as last:
            self._push(last, hosts=hosts, hosting=True)
            with ExitStack() as first:
                self._push(first, hosts=hosts, hosting=False)
            between()

    def abandon(self, error: BaseException) -> None:
        """Close all, as *error* makes it; what goes wrong in that is logged."""
        for name in reversed(self._opened):
            try:
                self._made[name].__exit__(type(error), error, error.__traceback__)
            except Exception:
                logger.exception("%s could not be closed", name)

    def terminate_pools(self) -> None:
        """Wake whoever waits for a pool; safe to call again, from any thread."""
        for name in list(self._opened):
            component = self._made[name]
            if isinstance(component, Pool):
                component.terminate()

    def _push(self, stack: ExitStack, *, hosts: set[str], hosting: bool) -> None:
        for name in self._opened:
            if (name in hosts) == hosting:
                stack.push(self._made[name])

    def _hosts(self) -> set[str]:
        """Return what closes last: components that others call, and the parts these stand on."""
        hosts = [name for name in self._opened if self._made[name].hosting]
        found: set[str] = set()
        while hosts:
            name = hosts.pop()
            found.add(name)
            hosts += [part for part in self._parts[name] if part not in found]
        return found
