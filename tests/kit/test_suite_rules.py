from __future__ import annotations

import socket
import subprocess
import sys
import threading
from multiprocessing import shared_memory
from pathlib import Path

import pytest

import pparallel.testing
from pparallel.testing import Suite, no_leftovers, overrides, requires

pytest_plugins = ["pytester"]

SUITE = """
    import pytest
    from pparallel.testing import Suite, overrides, requires

    class WordSuite(Suite):
        interface = "word"

        @pytest.fixture
        def features(self):
            return frozenset({"loud"})

        def test_kept(self):
            pass

        def test_replaced(self):
            pass

        @requires("loud")
        def test_loud(self):
            pass

        @requires("loud", "quiet")
        def test_quiet(self):
            raise AssertionError("not to be run")

        @requires(lacking=("loud",))
        def test_not_loud(self):
            raise AssertionError("not to be run")
"""


def run(pytester: pytest.Pytester, source: str, *, in_process: bool = True) -> pytest.RunResult:
    pytester.makepyfile(suite_of_words=SUITE, test_word=source)
    pytest_runs = pytester.runpytest_inprocess if in_process else pytester.runpytest_subprocess
    return pytest_runs("-p", "no:cacheprovider", "-rs")


def test_features_decide_what_is_run(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from suite_of_words import WordSuite

        class TestWord(WordSuite):
            pass
        """,
    )
    result.assert_outcomes(passed=4, skipped=2)
    result.stdout.fnmatch_lines_random(["*does not declare quiet*", "*declares loud*"])


def test_a_feature_that_no_test_asks_for_fails(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from pparallel.testing import overrides, requires
        from suite_of_words import WordSuite

        class TestMisspelt(WordSuite):
            @pytest.fixture
            def features(self):
                return {"loud", "quite"}

        class TestOwn(WordSuite):
            @pytest.fixture
            def features(self):
                return frozenset({"loud", "rhymed"})

            @overrides("says it twice")
            def test_loud(self):
                pass

            @requires("rhymed")
            def test_rhymed(self):
                pass
        """,
    )
    result.assert_outcomes(passed=3 + 5, failed=1, skipped=2 + 2)
    result.stdout.fnmatch_lines(
        ["the backend declares feature 'quite'; word has: loud, quiet. Did you mean 'quiet'[?]"]
    )


def test_an_override_needs_a_reason(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from pparallel.testing import overrides
        from suite_of_words import WordSuite

        class TestSilent(WordSuite):
            def test_replaced(self):
                pass

        class TestStill(TestSilent):
            pass

        class TestExplained(WordSuite):
            @overrides("words are spelt here")
            def test_replaced(self):
                assert True

        class TestNone(WordSuite):
            test_replaced = None

        class Mixin:
            def test_replaced(self):
                pass

        class TestMixed(Mixin, WordSuite):
            pass
        """,
    )
    result.assert_outcomes(passed=4 * 5 - 4, failed=4, skipped=2 * 5)
    result.stdout.fnmatch_lines(["*TestSilent.test_replaced overrides a test*@overrides*"])


def test_a_reason_is_not_blank() -> None:
    with pytest.raises(ValueError, match="reason"):
        overrides(" ")


def test_a_suite_without_a_config(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from suite_of_words import WordSuite

        class TestWord(WordSuite):
            def test_config(self, config):
                pass
        """,
    )
    result.assert_outcomes(passed=4, skipped=2, errors=1)
    result.stdout.fnmatch_lines(["*TestWord needs a fixture 'config'*"])


def test_a_test_that_leaves_something_fails(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os
        from suite_of_words import WordSuite

        class TestWord(WordSuite):
            patience = 0

            def test_leaves(self):
                os.pipe()
        """,
        in_process=False,
    )
    result.assert_outcomes(passed=5, skipped=2, errors=1)
    result.stdout.fnmatch_lines(["*left behind: descriptor * of a pipe*"])


def test_decorated_tests_stay_what_they_are() -> None:
    def test() -> None: ...

    assert requires("loud")(test) is test
    assert overrides("a reason")(test) is test


def test_everything_exported_exists() -> None:
    exported = {name: getattr(pparallel.testing, name) for name in dir(pparallel.testing)}
    suites = [each for name, each in exported.items() if name.endswith("Suite")]
    assert len(suites) == 10
    assert all(issubclass(each, Suite) for each in suites)
    with pytest.raises(AttributeError, match="nothing"):
        _ = pparallel.testing.nothing


def test_what_ends_in_time_is_not_left() -> None:
    thread = threading.Thread(target=threading.Event().wait, args=(0.1,))
    with no_leftovers():
        thread.start()
    assert not thread.is_alive()


def test_a_thread_that_is_left() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="stray")
    with pytest.raises(AssertionError, match="thread 'stray'"), no_leftovers(patience=0):
        thread.start()
    end.set()
    thread.join()


def test_a_process_that_is_left() -> None:
    code = "import sys; sys.stdin.read()"
    with pytest.raises(AssertionError, match="process") as caught, no_leftovers(patience=0):
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert f"process {process.pid}" in str(caught.value)
    process.communicate()


def test_a_dead_process_that_nobody_waited_for() -> None:
    with pytest.raises(AssertionError, match="zombie"), no_leftovers(patience=0):  # noqa: PT012
        process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.read()
        process.stdout.close()
        while "Z" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
            continue
    process.wait()


def test_a_socket_that_is_left() -> None:
    with pytest.raises(AssertionError, match="a socket"), no_leftovers(patience=0):
        left = socket.socket()
    left.close()


def test_a_file_that_is_left(tmp_path: Path) -> None:
    path = tmp_path / "left.txt"
    with pytest.raises(AssertionError, match=r"file .*left\.txt"), no_leftovers(patience=0):
        left = path.open("w")
    left.close()


def test_a_segment_that_is_left() -> None:
    with pytest.raises(AssertionError, match="segment /dev/shm/") as caught, no_leftovers(0):
        left = shared_memory.SharedMemory(create=True, size=64)
    left.close()
    assert left.name in str(caught.value)
    left.unlink()


def test_an_error_inside_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), no_leftovers(patience=0):
        _ = 1 / 0
