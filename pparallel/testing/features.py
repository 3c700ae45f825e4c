"""The features of each interface: what its docstring says of them, and which tests ask for them."""

from __future__ import annotations

import re
from typing import NamedTuple

import pparallel
import pparallel.testing
from pparallel.testing.suite import _FEATURES, _LACKING, Suite

_SECTION = re.compile(r"^ *Features:\n((?:(?: {8}.*)?\n)+)", re.M)
_BULLET = re.compile(r"``(\w+)``: (.*)")
_TESTS = re.compile(r" ?\((?:``(?:\w+\.)?test_\w+``(?:, | and )?)+\)")


class Feature(NamedTuple):
    """A guarantee that a backend may declare.

    Attributes:
        name: what backends declare.
        promise: what it guarantees, as the interface's docstring says it, without the tests.
        tests: those of the suite that are run where it is declared, and not elsewhere.
        instead: those that are run where it is not declared.
    """

    name: str
    promise: str
    tests: tuple[str, ...]
    instead: tuple[str, ...]


def features_of(interface: str) -> list[Feature]:
    """Return the features that the docstring of *interface* explains, in its order.

    Args:
        interface: its name in configs, such as ``ordered_server``.
    """
    suite = suite_of(interface)
    found = []
    for bullet in _bullets(interface):
        if match := _BULLET.match(bullet):
            name = match[1]
            tests, instead = (_marked(suite, mark, name) for mark in (_FEATURES, _LACKING))
            found.append(Feature(name, _TESTS.sub("", match[2]), tests, instead))
    return found


def suite_of(interface: str) -> type[Suite]:
    """Return the suite that checks the backends of *interface*."""
    suites = (
        getattr(pparallel.testing, each)
        for each in pparallel.testing.__all__
        if each.endswith("Suite") and each != "Suite"
    )
    found: type[Suite] = next(each for each in suites if each.interface == interface)
    return found


def required_by(suite: type[Suite]) -> set[str]:
    """Return the features that tests of *suite* ask for, or for the lack of."""
    tests = [getattr(suite, each) for each in dir(suite) if each.startswith("test_")]
    marks = [getattr(each, mark, ()) for each in tests for mark in (_FEATURES, _LACKING)]
    return {feature for mark in marks for feature in mark}


def known_to(suite: type[Suite]) -> set[str]:
    """Return the features that *suite* and those that it derives from ask for.

    A subclass may have replaced tests, and may have tests for features of its own.
    """
    suites = [each for each in suite.__mro__ if issubclass(each, Suite)]
    return {feature for each in suites for feature in required_by(each)}


def _marked(suite: type[Suite], mark: str, feature: str) -> tuple[str, ...]:
    tests = [each for each in dir(suite) if each.startswith("test_")]
    return tuple(each for each in tests if feature in getattr(getattr(suite, each), mark, ()))


def _bullets(interface: str) -> list[str]:
    name = "".join(part.capitalize() for part in interface.split("_"))
    section = _SECTION.search(getattr(pparallel, name).__doc__ or "")
    bullets = re.split(r"^ +- ", section[1], flags=re.M)[1:] if section else []
    return [" ".join(each.split()) for each in bullets]
