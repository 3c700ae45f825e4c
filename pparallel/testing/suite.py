"""The base of all conformance suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import pytest
from typing_extensions import override

from pparallel.builder import build, load
from pparallel.config import BackendConfig
from pparallel.errors import did_you_mean
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.registry import default_registry
from pparallel.testing.leftovers import Keeps, no_leftovers
from pparallel.testing.patience import ends_within

F = TypeVar("F", bound=Callable[..., object])
C = TypeVar("C", bound=BackendConfig[Any])

_FEATURES = "__pparallel_requires__"
_LACKING = "__pparallel_lacking__"
_REASON = "__pparallel_overrides__"


def requires(*features: str, lacking: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Run a suite's test only on backends that declare *features*, and none of *lacking*."""

    def mark(test: F) -> F:
        setattr(test, _FEATURES, features)
        setattr(test, _LACKING, lacking)
        return test

    return mark


def overrides(reason: str) -> Callable[[F], F]:
    """Say why a backend's suite replaces a test of the suite that it derives from."""
    if not reason.strip():
        message = "an override of a suite's test needs a reason"
        raise ValueError(message)

    def mark(test: F) -> F:
        setattr(test, _REASON, reason)
        return test

    return mark


def changed(config: C, **changes: object) -> C:
    """Return *config* with some options changed, validated again."""
    given = {name: getattr(config, name) for name in config.model_fields_set}
    return type(config)(**{**given, **changes})


class Suite:
    """Tests that hold for every backend of one interface.

    An author subclasses the suite of the interface and overrides the fixture ``config``. Each
    test is skipped where the backend does not declare the features that the test requires, and
    fails when it leaves something behind, or does not end in time. A test that is overridden
    without :func:`overrides` fails, and so does one test where the backend declares a feature that
    no test asks for: a guarantee is not to be dropped silently.

    Attributes:
        interface: the interface that the suite is for.
        patience: seconds that what a test started has to go, once the test has ended.
        limit: seconds after which a test that has not ended fails, so that a backend that hangs
            gets its verdict.
    """

    interface: ClassVar[str]
    patience: ClassVar[float] = 5.0
    limit: ClassVar[float] = 120.0

    @override
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in dir(cls):
            if name.startswith("test") and _is_silently_overridden(cls, name):
                setattr(cls, name, _refusal(f"{cls.__name__}.{name}"))

    @pytest.fixture
    def config(self) -> BackendConfig[Any]:
        """The config of the backend under test: overridden by the author."""
        message = (
            f"{type(self).__name__} needs a fixture 'config' that returns its backend's config"
        )
        raise NotImplementedError(message)

    @pytest.fixture
    def features(self, config: BackendConfig[Any]) -> frozenset[str]:
        """The features that the backend declares; overridden where it is not registered."""
        return default_registry().find(config.interface, config.backend).features

    @pytest.fixture
    def build(self) -> Callable[..., Any]:
        """What makes the component of a config; overridden where it is not registered."""
        return build

    @pytest.fixture
    def launcher(self) -> LauncherConfig:
        """The config of the launcher that starts members, where a test needs several."""
        return load(LauncherConfig, {"backend": "thread"})

    @pytest.fixture
    def surroundings(self) -> Keeps | None:
        """What goes on around the tests, set up before each looks at what there is.

        Overridden where a backend needs something that all tests share and that opens connections
        or threads when it likes, as a client library of a cluster does: returns what tells these
        from leftovers, as :func:`no_leftovers` takes it.
        """
        return None

    def test_declares_features_that_there_are(self, features: frozenset[str]) -> None:
        """A misspelt one would be missing: what asks for the one that was meant is skipped."""
        from pparallel.testing.features import known_to

        known = sorted(known_to(type(self)))
        for each in sorted(features - set(known)):
            hint = did_you_mean(each, known)
            message = f"the backend declares feature {each!r}; {self.interface} has: "
            pytest.fail(f"{message}{', '.join(known) or 'none'}.{hint}", pytrace=False)

    @pytest.fixture(autouse=True)
    def _only_where_declared_in_time_and_leaving_nothing(
        self, request: pytest.FixtureRequest, surroundings: Keeps | None
    ) -> Iterator[None]:
        wanted = getattr(request.function, _FEATURES, ())
        lacking = getattr(request.function, _LACKING, ())
        if wanted or lacking:
            declared: frozenset[str] = request.getfixturevalue("features")
            if missing := sorted(set(wanted) - declared):
                pytest.skip(f"the backend does not declare {', '.join(missing)}")
            if present := sorted(declared.intersection(lacking)):
                pytest.skip(f"the backend declares {', '.join(present)}")
        with no_leftovers(self.patience, surroundings), ends_within(self.limit):
            yield


def _is_silently_overridden(cls: type[Suite], name: str) -> bool:
    definers = [each for each in cls.__mro__ if name in vars(each)]
    replaced = [each for each in definers[1:] if issubclass(each, Suite)]
    return bool(replaced) and not getattr(vars(definers[0])[name], _REASON, "")


def _refusal(test: str) -> Callable[[Suite], None]:
    def refuse(self: Suite) -> None:
        message = f"{test} overrides a test of its suite without a reason: mark it @overrides(...)"
        pytest.fail(message)

    setattr(refuse, _REASON, "says that there is none")  # a subclass inherits the refusal
    return refuse
