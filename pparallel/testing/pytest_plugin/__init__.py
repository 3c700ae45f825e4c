"""The pytest plugin: tests that run over the installed backends.

A test that asks for the fixture ``pool``, ``transport``, ``ordered_server``, ``serializer``,
``reducer``, ``placer``, ``collective`` or ``launcher`` is run once for each installed backend of
that interface. pytest loads this module in every run where pparallel is installed, so it imports
nothing but pytest until a test asks for one of the fixtures.

``selection`` says which backends a test runs over, ``wishes`` what its markers ask for, ``tables``
what ``pyproject.toml`` tells the backends, ``sections`` makes of all that the configs of one test,
and ``fixtures`` opens what they describe.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pparallel.testing.pytest_plugin.selection import Selection

pytest_plugins = ["pparallel.testing.pytest_plugin.fixtures"]

#: The fixture that is the name of the backend under test, of each interface.
CARRIERS = {
    "pool": "_pparallel_pool",
    "transport": "_pparallel_transport",
    "ordered_server": "_pparallel_ordered_server",
    "serializer": "_pparallel_serializer",
    "reducer": "_pparallel_reducer",
    "placer": "_pparallel_placer",
    "collective": "_pparallel_collective",
    "launcher": "_pparallel_launcher",
}
_NAMES = "names of backends, with commas between them; 'pool:process' is that of one interface"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the keys of the ini file."""
    group = parser.getgroup("pparallel", "backends of pparallel")
    group.addoption(
        "--pparallel-backends",
        action="append",
        metavar="NAMES",
        help=f"run over these backends only: {_NAMES}; interfaces that none is of keep all",
    )
    parser.addini(
        "pparallel_backends",
        f"without --pparallel-backends, run over these only: {_NAMES}",
        type="args",
        default=[],
    )
    parser.addini(
        "pparallel_leftovers",
        "fail where what pparallel opened for a test, or the test, leaves a thread, process, file"
        " or shared memory behind",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse what is asked for and does not exist.

    Raises:
        pytest.UsageError: no installed backend has a name that is given, or a table in
            ``pyproject.toml`` is wrong.
    """
    config.addinivalue_line(
        "markers",
        "pparallel(backends=[...], features={...}, options={interface: {...}}): run over these"
        " backends only, or those with these features, with these options",
    )
    if config.getini("pparallel_leftovers") and find_spec("psutil") is None:
        message = "pparallel_leftovers needs psutil: pip install 'pparallel[testing]'"
        raise pytest.UsageError(message)
    if config.getoption("pparallel_backends") or config.getini("pparallel_backends"):
        from pparallel.errors import PparallelError

        try:
            _selection(config)
        except PparallelError as error:
            raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each backend of each interface that it asks for."""
    interfaces = {carrier: interface for interface, carrier in CARRIERS.items()}
    for carrier in [each for each in metafunc.fixturenames if each in interfaces]:
        if not _is_parametrized(metafunc, interfaces[carrier]):
            _parametrize(metafunc, carrier, interfaces[carrier])


def _parametrize(metafunc: pytest.Metafunc, carrier: str, interface: str) -> None:
    from pparallel.errors import PparallelError

    problem = None
    try:
        names, why_none = _selection(metafunc.config).names(interface, metafunc.definition)
    except PparallelError as error:
        problem = error
    if problem is not None:  # here, as within the handler pytest would show the error twice
        pytest.fail(f"{metafunc.definition.nodeid}: {problem}", pytrace=False)
    values = [pytest.param(each, id=each) for each in names]
    if not values:
        values = [pytest.param("", id="none", marks=pytest.mark.skip(reason=why_none))]
    metafunc.parametrize(carrier, values, indirect=True)


def _is_parametrized(metafunc: pytest.Metafunc, name: str) -> bool:
    """Return whether a hook of the tests' own has given a fixture of ours its values.

    pytest has no public way to ask.
    """
    return any(name in each.params for each in getattr(metafunc, "_calls", ()))


def _selection(config: pytest.Config) -> Selection:
    from pparallel.testing.pytest_plugin.selection import selection

    return selection(config)
