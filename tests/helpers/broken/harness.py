"""What the modules beside this one are made of, and the pytest plugin that runs one of them.

``tests/kit/test_broken_backends.py`` runs each module in a pytest of its own, where it is an
installed plugin: its backends are found, built and launched as any other. Of each class only the
tests run that must reject its backend, each with a time limit, so that a backend that hangs is a
failed test as well.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import pytest
from pydantic import create_model

from pparallel.config import BackendConfig
from pparallel.plugin import Backend
from pparallel.testing import Suite, patience

S = TypeVar("S", bound=type[Suite])

patience.PATIENCE = 2.0  # before a suite takes it: what a fault makes wait in vain ends soon
Suite.patience = 1.0

OUTCOMES = "PPARALLEL_BROKEN_OUTCOMES"  #: the file in which a run leaves what came of its tests
_LIMITS = ("Timeout (>", "the test did not end within")  # pytest-timeout's words, and the suites'


class Verdict(NamedTuple):
    """The tests that must reject a backend, and whether they may do so by never ending."""

    tests: tuple[str, ...]
    hangs: bool


def rejected_by(*tests: str, hangs: bool = False) -> Callable[[S], S]:
    """Say which tests of its suite must fail for a class's backend.

    Args:
        tests: their names; only they are run.
        hangs: the time limit of a test may be what rejects the backend.
    """

    def mark(cls: S) -> S:
        if missing := [each for each in tests if not hasattr(cls, each)]:
            message = f"{cls.__name__}: the suite has no {', '.join(missing)}"
            raise AttributeError(message)
        cls.verdict = Verdict(tests, hangs)  # type: ignore[attr-defined]
        if hangs:
            cls.limit = 3.0
        return cls

    return mark


class Backends:
    """The broken backends of one module, and the records that offer them.

    Args:
        like: the config class of the sound backend that they derive from.
        plugin: the plugin that offers it, whose features and reach they claim.
    """

    def __init__(self, like: type[BackendConfig[Any]], plugin: Any) -> None:
        self._like = like
        (self._sound,) = (
            each
            for each in plugin.pparallel_backends()
            if each.config.endswith(f":{like.__name__}")
        )
        self.records: list[Backend] = []

    def config(self, broken: type, **options: object) -> Any:
        """Offer *broken*, a class of the calling module; return a suite's fixture ``config``.

        The claims are the sound backend's; the class may have others in its attribute
        ``features``.
        """
        name = broken.__name__
        fields: dict[str, Any] = {"backend": (Literal[name], name)}
        make: Any = create_model  # mypy's plugin would name the class after the variable
        config = make(f"{name}Config", __base__=self._like, **fields)
        features = getattr(broken, "features", self._sound.features)
        setattr(sys.modules[broken.__module__], config.__name__, config)
        record = Backend(
            self._sound.interface,
            name,
            config=f"{broken.__module__}:{config.__name__}",
            target=f"{broken.__module__}:{name}",
            features=features,
            reach=self._sound.reach,
        )
        self.records.append(record)

        @pytest.fixture
        def fixture(self: Suite) -> Any:
            return config(**options)

        return fixture


# -- the plugin of the run --------------------------------------------------------------------

_found: defaultdict[str, dict[str, str]] = defaultdict(dict)


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Keep the tests that must reject their class's backend."""
    named = {id(each) for each in items if each.originalname in each.cls.verdict.tests}
    config.hook.pytest_deselected(items=[each for each in items if id(each) not in named])
    items[:] = [each for each in items if id(each) in named]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip further forms of a test that has rejected its backend in one form."""
    cls, test = item.cls, item.originalname  # type: ignore[attr-defined]
    if _found[cls.__name__].get(test) == "rejected":
        pytest.skip("another form of this test has rejected the backend")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what came of each test; of several forms of one, that of any which failed."""
    report = yield
    cls, test = item.cls, item.originalname  # type: ignore[attr-defined]
    known = _found[cls.__name__].get(test)
    if report.failed and report.when == "setup":
        _found[cls.__name__][test] = "could not be set up"
    elif report.failed and known not in ("could not be set up", "rejected"):
        by_limit = any(each in str(report.longrepr) for each in _LIMITS) and not cls.verdict.hangs
        _found[cls.__name__][test] = "did not end" if by_limit else "rejected"
    elif known is None and (report.skipped or report.when == "call"):
        _found[cls.__name__][test] = report.outcome
    return report


def pytest_unconfigure() -> None:
    """Leave what was found, and end without waiting for what the backends left running."""
    Path(os.environ[OUTCOMES]).write_text(json.dumps(_found))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
