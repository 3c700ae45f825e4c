"""What an interface promises names the test that enforces it, and that test exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import pparallel
import pparallel.testing

#: The interfaces and the suites that check them.
SUITES = {
    "Collective": "CollectiveSuite",
    "Launcher": "LauncherSuite",
    "OrderedServer": "OrderedServerSuite",
    "Placer": "PlacerSuite",
    "Pool": "PoolSuite",
    "Reducer": "ReducerSuite",
    "RpcGroup": "TransportSuite",
    "Serializer": "SerializerSuite",
    "Transport": "TransportSuite",
}


def sentences(interface: str) -> Iterator[str]:
    """The sentences of the bullets under Guarantees and Features."""
    text = getattr(pparallel, interface).__doc__
    for section in re.findall(r"^ *(?:Guarantees|Features):\n((?:(?: {8}.*)?\n)+)", text, re.M):
        for bullet in re.split(r"^ +- ", section, flags=re.M)[1:]:
            flat = " ".join(bullet.split())
            yield from re.split(r"(?<=\.) (?=[A-Z`:])", flat)


CASES = [
    pytest.param(interface, each, id=f"{interface}-{each[:50]}")
    for interface in SUITES
    for each in sentences(interface)
]


def test_each_interface_promises_something() -> None:
    assert {case.values[0] for case in CASES} == set(SUITES)


@pytest.mark.parametrize(("interface", "sentence"), CASES)
def test_a_guarantee_names_its_test(interface: str, sentence: str) -> None:
    named = re.findall(r"``(?:(\w+Suite)\.)?(test_\w+)``", sentence)
    assert named, f"{interface}: no test is named for: {sentence}"
    for suite, test in named:
        assert hasattr(getattr(pparallel.testing, suite or SUITES[interface]), test), test
