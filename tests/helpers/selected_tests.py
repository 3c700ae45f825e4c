"""A decorator that restricts a subclass of a suite to named tests; another class runs it whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pparallel.testing.suite import Suite

S = TypeVar("S", bound=Suite)


def only(*laws: str) -> Callable[[type[S]], type[S]]:
    """Have a class of tests run *laws* alone, of those that it inherits."""

    def thin(tests: type[S]) -> type[S]:
        inherited = {each for each in dir(tests) if each.startswith("test_")}
        assert inherited.issuperset(laws), set(laws) - inherited
        for each in inherited.difference(laws, vars(tests)):
            setattr(tests, each, None)
        return tests

    return thin
