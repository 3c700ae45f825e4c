"""What the clients of a crew do in the tests of the benchmarks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from benchmarks.crews import Part


class Place(NamedTuple):
    """Where a client is: its number, of how many, and a folder that all of them see."""

    client: int
    clients: int
    folder: Path


@contextmanager
def placed(client: int, clients: int, folder: Path) -> Iterator[Place]:
    (folder / f"opened-{client}").write_text(str(os.getpid()))
    yield Place(client, clients, folder)
    (folder / f"closed-{client}").touch()


class InStep(Part):
    """Finds out whether all clients have done each step before any does the next."""

    tasks = 1

    def __init__(self, place: Place) -> None:
        self._place = place
        self._number = -1

    @override
    def prepare(self, number: int) -> None:
        self._number = number
        self._all_have("opened" if number == 0 else f"checked-{number - 1}")
        self._note("prepared")

    @override
    def run(self) -> Mapping[str, float]:
        self._all_have(f"prepared-{self._number}")
        self._note("run")
        return {"client": float(self._place.client)}

    @override
    def check(self) -> bool:
        self._all_have(f"run-{self._number}")
        self._note("checked")
        return True

    def _note(self, step: str) -> None:
        (self._place.folder / f"{step}-{self._number}-{self._place.client}").touch()

    def _all_have(self, step: str) -> None:
        found = list(self._place.folder.glob(f"{step}-*"))
        if len(found) != self._place.clients:
            raise RuntimeError(f"{len(found)} clients have {step}")


class Wrong(InStep):
    """Has a wrong result in the last client."""

    @override
    def check(self) -> bool:
        return self._place.client < self._place.clients - 1


class Broken(InStep):
    """Fails in the last client."""

    @override
    def run(self) -> Mapping[str, float]:
        if self._place.client == self._place.clients - 1:
            raise LookupError("nothing is there")
        return {}
