"""The pytest plugin: what backends are told, and those that cannot be tested."""

from __future__ import annotations

import textwrap

import pytest
from pytest_projects import STRICT, install

from pparallel.errors import ConfigError
from pparallel.plugin import hookimpl
from pparallel.registry import Registry
from pparallel.testing.pytest_plugin import selection
from pparallel.testing.pytest_plugin.tables import Tables

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyprojecttoml(STRICT)


@pytest.fixture
def shelf(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    install(pytester, monkeypatch)


# -- options -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shelf")
def test_options_come_from_the_file_from_fixtures_and_from_the_marker(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyprojecttoml(f"""{STRICT}
        [tool.pparallel.backends.pool.kept]
        folder = "{{tmp_path}}/kept"
        weight = "{{weight}}"
        label = "{{{{tmp_path}}}} is {{weight}} kg"
        size = 2
    """)
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def weight(): return 7

        @pytest.mark.pparallel(backends=["kept"], options={"pool": {"size": 3}})
        class TestIt:
            def test_class(self, runtime, pool, tmp_path):
                config = runtime.config.pool
                assert (config.folder, config.weight) == (tmp_path / "kept", 7)
                assert (config.label, config.size) == ("{tmp_path} is 7 kg", 3)

            @pytest.mark.pparallel(options={"pool": {"size": 4}})
            def test_next_to_it(self, runtime, pool):
                assert runtime.config.pool.size == 4
    """)
    pytester.runpytest_subprocess().assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "pool.serial]\nsise = 2",
            "pyproject.toml: [[]tool.pparallel.backends.pool.serial]: pool backend 'serial': "
            "sise: unknown key 'sise'. Did you mean 'size'[?]",
        ),
        (
            "pol.serial]\nsize = 2",
            "*pyproject.toml: [[]tool.pparallel.backends]: no interface 'pol'; *",
        ),
        (
            "pool]\nserial = 2",
            "*pyproject.toml: tool.pparallel.backends.pool.serial: it is a table,*",
        ),
        (
            "pool.serail]\nsize = 2",
            "*: pyproject.toml: [[]tool.pparallel.backends.pool.serail] is for a backend that is"
            " not installed; pool backends are *Did you mean 'serial'[?]",
        ),
    ],
    ids=["key", "interface", "no table", "not installed"],
)
def test_a_wrong_table_is_an_error(pytester: pytest.Pytester, table: str, message: str) -> None:
    pytester.makepyprojecttoml(f"{STRICT}\n[tool.pparallel.backends.{table}")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.pparallel(backends=["serial"])
        def test_it(pool): pass
    """)
    done = pytester.runpytest_inprocess()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([message])


@pytest.mark.usefixtures("shelf")
def test_a_required_option_that_is_misspelt_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(f"{STRICT}\n[tool.pparallel.backends.pool.kept]\nfoldr = 'here'")
    pytester.makepyfile("""
        def test_it(pool): pass
    """)
    done = pytester.runpytest_subprocess("--pparallel-backends=kept")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(
        [
            "pyproject.toml: [[]tool.pparallel.backends.pool.kept]: pool backend 'kept': foldr:"
            " unknown key 'foldr'. Did you mean 'folder'[?]",
        ]
    )


@pytest.mark.usefixtures("shelf")
def test_a_marker_that_misspells_a_required_option_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.pparallel(options={"pool": {"folder": "here", "wait": 3}})
        def test_marker(pool): pass
    """)
    done = pytester.runpytest_subprocess("--pparallel-backends=kept")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(
        ["*mark.pparallel: pool backend 'kept': wait: unknown key 'wait'. *'weight'[?]"]
    )


def test_a_plugin_that_cannot_be_loaded_is_told_of(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(pytester, monkeypatch, "raise LookupError('no shelf')")
    pytester.makepyprojecttoml(STRICT.replace('["error"]', "[]"))
    pytester.makepyfile("def test_it(pool): pass")
    done = pytester.runpytest_subprocess("--pparallel-backends=serial")
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*plugin shelf could not be loaded, and its backends are not*"])


def test_an_unknown_name_may_be_that_of_a_plugin_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Shelf:
        @hookimpl
        def pparallel_backends(self) -> list[object]:
            message = "no shelf"
            raise LookupError(message)

    monkeypatch.setattr(selection, "default_registry", lambda: Registry(Shelf()))
    message = r"no backend 'absent'; .* Plugins that could not be loaded may have it: Shelf\."
    with pytest.raises(ConfigError, match=message):
        selection.Selection(["absent"], "--pparallel-backends", Tables())


# -- what cannot be tested -----------------------------------------------------------------------

UNTESTABLE = """
    import pytest

    @pytest.mark.pparallel(features={"shelf"})
    def test_all(pool): pass

    @pytest.mark.pparallel(backends=["kept"])
    def test_named(pool): pass
"""


@pytest.mark.usefixtures("shelf")
def test_what_cannot_be_used_is_skipped_and_says_what_to_type(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(UNTESTABLE)
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(skipped=4)
    kept = "[[]tool.pparallel.backends.pool.kept]"
    done.stdout.fnmatch_lines_random(
        [
            "SKIPPED [[]1]*pool backend 'absent': not installed: no_such_library; to install: pip*",
            "SKIPPED [[]1]*pool backend 'hollow' * No module named 'no_such_library'; to install *",
            f"SKIPPED [[]1]*pool backend 'kept' needs folder, weight: in pyproject.toml, below"
            f' {kept}, write folder = "{{tmp_path}}/kept", weight = ...',
        ]
    )


@pytest.mark.usefixtures("shelf")
def test_in_ci_what_is_missing_fails_and_what_is_not_told_enough_if_it_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(textwrap.dedent(UNTESTABLE))
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(skipped=1, errors=3)
    done.stdout.fnmatch_lines_random(
        [
            "ERROR *test_all[[]absent]*",
            "ERROR *test_all[[]hollow]*",
            "SKIPPED [[]1]*pool backend 'kept' needs folder, weight: *",
            "ERROR *test_named[[]kept]*",
            "pool backend 'absent': * (in CI a missing backend fails: install it, or name *",
            "pool backend 'kept' needs * (in CI a backend that is asked for by name fails)",
        ]
    )
