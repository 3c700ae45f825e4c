"""The pytest plugin: what a project's tests are handed, and what is skipped or fails.

The projects' tests run in a process of their own: pytester drops the modules that a run in this one
has imported, and torch cannot be imported twice.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytest_projects import STRICT

import pparallel
from pparallel.testing.pytest_plugin.jobs import job
from pparallel_ipc import IpcTransportConfig
from pparallel_local import LocalTransportConfig
from pparallel_process import ProcessLauncherConfig
from pparallel_servers import SqliteOrderedServerConfig
from pparallel_torch import GlooCollectiveConfig

pytest_plugins = ["pytester"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytest.md"


@pytest.fixture(autouse=True)
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyprojecttoml(STRICT)


# -- the page ------------------------------------------------------------------------------------


def test_the_pages_example(pytester: pytest.Pytester) -> None:
    blocks = dict(re.findall(r"^```([ \w{.}]*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S))
    pytester.makepyprojecttoml(blocks["toml"])
    pytester.path.joinpath("test_visits.py").write_text(blocks[" { .python }"])
    command, *shown = blocks["console"].splitlines()
    done = pytester.runpytest_subprocess(*command.split()[2:])
    done.assert_outcomes(passed=len(shown))
    done.stdout.fnmatch_lines([line.replace("[", "[[]") + " *" for line in shown])


def test_the_page_tells_of_all_there_is() -> None:
    page = PAGE.read_text()
    fixtures = ["runtime", "run_members", *pparallel.registry.INTERFACES]
    assert [each for each in fixtures if f"`{each}`" not in page] == []
    options = ["--pparallel-backends", "pparallel_backends", "pparallel_leftovers"]
    arguments = ["backends=", "features=", "options="]
    assert [each for each in (*options, *arguments) if each not in page] == []


# -- components ----------------------------------------------------------------------------------


def test_components_are_open_and_belong_to_one_runtime(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(f"{STRICT}pparallel_leftovers = true")
    pytester.makepyfile("""
        def test_pool(pool, runtime):
            assert pool is runtime.pool
            assert pool.map(abs, [-1, 2]) == [1, 2]

        def test_transport(transport, runtime):
            assert runtime.group().rpc_sync(runtime.name, abs, args=(-1,)) == 1
            assert transport is runtime.transport

        def test_ordered_server(ordered_server, serializer, pool):
            assert ordered_server.push("key", [1], 1, None)
            assert ordered_server.pull("key") == ([1], 1)
            assert serializer.loads(serializer.dumps(pool.map(abs, [-3]))) == [3]

        def test_reducer(reducer): assert reducer.trains

        def test_placer(placer):
            assert placer.place([1.0], {}, ["cpu"]).assignment

        def test_collective(collective): assert collective.rank == 0

        def test_launcher(launcher): assert launcher.spawn(abs, nprocs=2) == [0, 1]
    """)
    names = "serial,thread,ipc,zmq,memory,pickle,safe,greedy,collective:local,launcher:thread"
    backends = f"--pparallel-backends={names},model_server"
    done = pytester.runpytest_subprocess(backends, "-n", "2")  # xdist compares what each collects
    done.assert_outcomes(passed=2 + 2 + 4 + 1 + 1 + 1 + 1)


def test_members_have_the_backends_under_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def what(rt, *args, **kwargs):
            return rt.name, rt.config.transport.backend, rt.config.launcher.backend, args, kwargs

        def test_it(transport, launcher, runtime, run_members):
            first, second = run_members(["a", "b"], what, 1, key=2)
            expected = (runtime.config.transport.backend, "process", (1,), {"key": 2})
            assert first == ("a", *expected)
            assert second == ("b", *expected)
    """)
    done = pytester.runpytest_subprocess("--pparallel-backends=local,ipc,launcher:process")
    done.assert_outcomes(passed=1, skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED *transport.backend: 'local' works among threads only, *"])


def test_members_live_as_near_as_the_backends_allow(tmp_path: Path) -> None:
    sqlite = SqliteOrderedServerConfig(path=tmp_path / "store")
    gloo, ipc = GlooCollectiveConfig(), IpcTransportConfig()
    near = job(2, {"ordered_server": sqlite, "transport": ipc})
    assert near.launcher is not None
    assert near.launcher.backend == "thread"
    far = job(2, {"ordered_server": sqlite, "collective": gloo})
    assert isinstance(far.launcher, ProcessLauncherConfig)
    assert (far.members, far.ordered_server, far.collective) == (2, sqlite, gloo)
    message = "no launcher puts members where all .* work: transport 'local', collective 'gloo'"
    with pytest.raises(pytest.skip.Exception, match=message):
        job(2, {"transport": LocalTransportConfig(), "collective": gloo})


def test_leftovers_fail_where_the_project_wants_it(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(f"{STRICT}pparallel_leftovers = true")
    pytester.makeconftest("""
        from functools import partial
        from pparallel.testing import leftovers

        leftovers.no_leftovers = partial(leftovers.no_leftovers, 0.1)
    """)
    pytester.makepyfile("""
        import os

        def test_it(pool): assert os.open(__file__, os.O_RDONLY)
    """)
    done = pytester.runpytest_subprocess("--pparallel-backends=serial")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["E * left behind: descriptor * of file *"])
