"""The fixtures: a component of each interface, opened with the backend under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from pparallel.builder import Runtime
    from pparallel.config import BackendConfig
    from pparallel.interfaces.collective import Collective
    from pparallel.interfaces.launcher import Launcher
    from pparallel.interfaces.ordered_server import OrderedServer
    from pparallel.interfaces.placer import Placer
    from pparallel.interfaces.pool import Pool
    from pparallel.interfaces.reducer import Reducer
    from pparallel.interfaces.serializer import Serializer
    from pparallel.interfaces.transport import Transport

T = TypeVar("T")


@pytest.fixture
def pool(_pparallel_pool: str, runtime: Runtime) -> Pool:
    """A pool, open: of each installed backend in turn."""
    return _opened(lambda: runtime.pool)


@pytest.fixture
def transport(_pparallel_transport: str, runtime: Runtime) -> Transport:
    """The transport of a member that is alone, open: of each installed backend in turn."""
    return _opened(lambda: runtime.transport)


@pytest.fixture
def ordered_server(_pparallel_ordered_server: str, runtime: Runtime) -> OrderedServer:
    """An ordered server, open: of each installed backend in turn."""
    return _opened(lambda: runtime.ordered_server)


@pytest.fixture
def serializer(_pparallel_serializer: str, runtime: Runtime) -> Serializer:
    """A serializer: of each installed backend in turn."""
    return _opened(lambda: runtime.serializer)


@pytest.fixture
def reducer(_pparallel_reducer: str, runtime: Runtime) -> Reducer:
    """The reducer of a member that is alone, open: of each installed backend in turn."""
    return _opened(lambda: runtime.reducer)


@pytest.fixture
def placer(_pparallel_placer: str, runtime: Runtime) -> Placer:
    """A placer: of each installed backend in turn."""
    return _opened(lambda: runtime.placer)


@pytest.fixture
def collective(_pparallel_collective: str, runtime: Runtime) -> Collective:
    """The collective of a member that is alone, open: of each installed backend in turn."""
    return _opened(lambda: runtime.collective)


@pytest.fixture
def launcher(_pparallel_launcher: str, runtime: Runtime) -> Launcher:
    """A launcher, open: of each installed backend in turn."""
    return _opened(lambda: runtime.launcher)


@pytest.fixture
def runtime(
    request: pytest.FixtureRequest, _pparallel_sections: Mapping[str, BackendConfig[Any]]
) -> Iterator[Runtime]:
    """The runtime of a member that is alone, with the backends under test."""
    from pparallel.builder import RuntimeConfig, build

    with _leaving_nothing(request.config), build(RuntimeConfig(**_pparallel_sections)) as rt:
        yield rt


@pytest.fixture
def run_members(
    request: pytest.FixtureRequest, _pparallel_sections: Mapping[str, BackendConfig[Any]]
) -> Callable[..., list[Any]]:
    """What runs ``target(rt, *args)`` in several members, with the backends under test.

    ``run_members(3, target, *args, **kwargs)`` returns the results by rank; instead of a number it
    takes what the key ``members`` of a config takes.
    """
    from pparallel.testing.pytest_plugin.jobs import job

    def run_members(
        members: object, target: Callable[..., Any], *args: object, **kwargs: object
    ) -> list[Any]:
        from pparallel.builder import launch

        config = job(members, _pparallel_sections)
        with _leaving_nothing(request.config):
            return launch(config, target, args, kwargs)

    return run_members


def _carrier() -> Any:
    """Make a fixture that is the name of the backend under test."""

    @pytest.fixture
    def backend(request: pytest.FixtureRequest) -> str:
        name = getattr(request, "param", None)
        if not isinstance(name, str):
            message = (
                "pparallel's fixtures run a test once for each backend, which works only where the"
                " test names them among its arguments; no unittest.TestCase can, and"
                " getfixturevalue comes too late"
            )
            pytest.fail(message, pytrace=False)
        return name

    return backend


# The hook pytest_generate_tests gives each of them its values. Where a test suite has a fixture
# 'pool' of its own, nobody asks for that of _pparallel_pool.
_pparallel_pool = _carrier()
_pparallel_transport = _carrier()
_pparallel_ordered_server = _carrier()
_pparallel_serializer = _carrier()
_pparallel_reducer = _carrier()
_pparallel_placer = _carrier()
_pparallel_collective = _carrier()
_pparallel_launcher = _carrier()


@pytest.fixture
def _pparallel_sections(request: pytest.FixtureRequest) -> dict[str, BackendConfig[Any]]:
    """The config of each backend under test, by interface."""
    from pparallel.testing.pytest_plugin import CARRIERS
    from pparallel.testing.pytest_plugin.sections import section

    return {
        interface: section(request, interface, request.getfixturevalue(carrier))
        for interface, carrier in CARRIERS.items()
        if carrier in request.fixturenames
    }


def _opened(component: Callable[[], T]) -> T:
    """Return a component, or skip the test where the library that it needs cannot be imported."""
    from pparallel.errors import MissingDependencyError
    from pparallel.testing.pytest_plugin.sections import refuse_missing

    try:
        return component()
    except MissingDependencyError as error:
        reason = str(error)
    return refuse_missing(reason)


def _leaving_nothing(config: pytest.Config) -> AbstractContextManager[None]:
    if not config.getini("pparallel_leftovers"):
        return nullcontext()
    from pparallel.testing.leftovers import no_leftovers

    return no_leftovers()
