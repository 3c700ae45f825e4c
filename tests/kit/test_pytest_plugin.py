"""The pytest plugin: which tests it makes of a project's, and what it refuses."""

from __future__ import annotations

import pytest
from pytest_projects import STRICT

from pparallel.registry import INTERFACES, default_registry

pytest_plugins = ["pytester"]

ALL = ", ".join(INTERFACES)


@pytest.fixture(autouse=True)
def strict(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyprojecttoml(STRICT)


def collected(pytester: pytest.Pytester, *args: str) -> list[str]:
    """Return the tests that a run would have, without their file."""
    done = pytester.runpytest_inprocess("--collect-only", "-q", *args)
    assert done.ret == 0, done.outlines
    return [each.rpartition("::")[2] for each in done.outlines if "::" in each]


def installed(interface: str) -> list[str]:
    return [each.name for each in default_registry().offers() if each.interface == interface]


# -- which backends ------------------------------------------------------------------------------


def test_a_test_is_run_once_for_each_installed_backend(pytester: pytest.Pytester) -> None:
    tests = [f"def test_{each}({each}): pass\n" for each in INTERFACES]
    pytester.makepyfile("".join(tests))
    expected = [f"test_{each}[{name}]" for each in INTERFACES for name in installed(each)]
    assert collected(pytester) == expected
    assert {"test_pool[process]", "test_launcher[process]", "test_transport[zmq]"} <= {*expected}


def test_a_name_counts_for_each_interface_that_has_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_both(pool, launcher): pass\ndef test_other(serializer): pass")
    named = collected(pytester, "--pparallel-backends=process,thread,pickle")
    pairs = [("process", "process"), ("process", "thread"), ("thread", "process")]
    both = [f"test_both[{a}-{b}]" for a, b in [*pairs, ("thread", "thread")]]
    assert named == [*both, "test_other[pickle]"]
    one = collected(pytester, "--pparallel-backends", "pool:process", "--pparallel-backends=safe")
    expected = [f"test_both[process-{each}]" for each in installed("launcher")]
    assert one == [*expected, "test_other[safe]"]


@pytest.mark.parametrize("written", ['"process, zmq"', '["process", "zmq"]'])
def test_the_ini_file_names_backends_and_the_command_line_others(
    pytester: pytest.Pytester, written: str
) -> None:
    pytester.makepyprojecttoml(f"{STRICT}pparallel_backends = {written}")
    pytester.makepyfile("def test_it(pool, transport): pass")
    assert collected(pytester) == ["test_it[process-zmq]"]
    assert collected(pytester, "--pparallel-backends=serial,ipc") == ["test_it[serial-ipc]"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("proces", "no backend 'proces'; installed are *Did you mean 'process'[?]"),
        ("pool:zmq", "no backend 'pool:zmq'; installed are pool: p2p, process, *"),
        ("pol:zmq", f"no interface 'pol'; there are {ALL}. Did you mean 'pool'[?]"),
    ],
)
def test_an_unknown_name_ends_the_run(pytester: pytest.Pytester, asked: str, message: str) -> None:
    pytester.makepyfile("def test_it(): pass")
    done = pytester.runpytest_inprocess(f"--pparallel-backends={asked}")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: --pparallel-backends: {message}"])


def test_a_marker_narrows_what_one_test_runs_over(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        pytestmark = pytest.mark.pparallel(backends=["process", "thread", "launcher:process"])

        @pytest.mark.pparallel(features={"isolated"})
        def test_features(pool, launcher, serializer): pass

        @pytest.mark.pparallel(features=["pool:parallel"], backends="thread")
        def test_both(pool): pass
    """)
    expected = [f"test_features[process-process-{each}]" for each in installed("serializer")]
    assert collected(pytester) == [*expected, "test_both[thread]"]
    narrowed = collected(pytester, "--pparallel-backends=serial,thread,safe")
    assert narrowed == ["test_features[none-none-safe]", "test_both[thread]"]


def test_a_test_that_no_backend_is_left_for_is_skipped(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.pparallel(features={"isolated"})
        def test_it(pool): pass

        @pytest.mark.pparallel(backends=["process"])
        def test_that(pool): pass
    """)
    done = pytester.runpytest_inprocess("-rs", "--pparallel-backends=thread,serial")
    done.assert_outcomes(skipped=2)
    done.stdout.fnmatch_lines(
        [
            "SKIPPED * of the pool backends serial, thread none declares isolated",
            "SKIPPED * no pool backend is both in --pparallel-backends and in the test's marker*",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("feature={'isolated'}", "no argument 'feature'; there are * Did you mean 'features'[?]"),
        ("'process'", "give backends, features, options by keyword, not 'process'"),
        ("backends=['tread']", "no backend 'tread'; installed are * Did you mean 'thread'[?]"),
        ("features={'isolatd'}", "no feature 'isolatd'; *Did you mean 'isolated'[?]"),
        ("features=3", "features: give names, not 3"),
        (
            "options={'size': 2}",
            "options: no interface 'size'; give options by interface, *",
        ),
        ("options={'pool': 2}", "options.pool: give options by interface, * not 2"),
    ],
)
def test_a_wrong_marker_is_an_error(
    pytester: pytest.Pytester, arguments: str, message: str
) -> None:
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.pparallel({arguments})
        def test_it(pool): pass
    """)
    done = pytester.runpytest_inprocess()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([f"*::test_it: @pytest.mark.pparallel: {message}"])


# -- those who do not use it ---------------------------------------------------------------------


def test_fixtures_and_values_of_ones_own_come_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        def pytest_generate_tests(metafunc):
            if "serializer" in metafunc.fixturenames:
                metafunc.parametrize("serializer", [1, 2])

        @pytest.fixture
        def pool(): return 3

        def test_fixture(pool): assert pool == 3

        @pytest.mark.parametrize("transport", [4, 5])
        def test_mark(transport): assert transport in (4, 5)

        def test_hook(serializer): assert serializer in (1, 2)
    """)
    pytester.runpytest_inprocess("-W", "error").assert_outcomes(passed=5)


def test_it_can_be_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(pool): pass")
    done = pytester.runpytest_inprocess("-p", "no:pparallel")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*fixture 'pool' not found"])


def test_who_does_not_use_it_imports_next_to_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_it():
            loaded = {each for each in sys.modules if each.startswith("pparallel")}
            assert loaded == {
                "pparallel",
                "pparallel.lazy",
                "pparallel.testing",
                "pparallel.testing.pytest_plugin",
                "pparallel.testing.pytest_plugin.fixtures",
            }
            assert not {"torch", "pydantic", "numpy", "psutil", "yaml"} & set(sys.modules)
    """)
    pytester.runpytest_subprocess("-p", "no:hypothesispytest").assert_outcomes(passed=1)


@pytest.mark.parametrize("how", ["test case", "too late"])
def test_what_cannot_be_run_over_backends_says_so(pytester: pytest.Pytester, how: str) -> None:
    pytester.makepyfile(
        "def test_it(request): request.getfixturevalue('pool')"
        if how == "too late"
        else """
        import unittest
        import pytest

        class TestCase(unittest.TestCase):
            @pytest.mark.usefixtures("pool")
            def test_it(self): pass
        """
    )
    done = pytester.runpytest_inprocess()
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["pparallel's fixtures run a test once for each backend, *"])
