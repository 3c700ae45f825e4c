"""``import pparallel`` is cheap, and every public name is there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import pparallel

HEAVY = ("torch", "zmq", "dill", "numpy", "scipy")


#: what a program does one after another, and when what it has imported is looked at
STEPS = {
    "nothing": "",
    "package": "import pparallel",
    "builder": "pparallel.build",
    "listing": "from pparallel.registry import default_registry; default_registry().offers()",
    "job": """
def work(rt):
    rt.ordered_server.push(rt.name, [1], 1, None)
    rt.group().barrier()
    rt.collective.barrier()
    return sum(rt.pool.map(abs, [-1, rt.reducer.manages]))

assert pparallel.launch({"members": 3}, work) == [2, 1, 1]
""",
}


def modules_after(*steps: str) -> list[set[str]]:
    """Return the names of the modules that a fresh interpreter has imported after each step."""
    look = "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    script = "\n".join(["import json, sys", *(f"{each}\n{look}" for each in steps)])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return [set(json.loads(line)) for line in done.stderr.splitlines()[-len(steps) :]]


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    return dict(zip(STEPS, modules_after(*STEPS.values()), strict=True))


def test_importing_pparallel_imports_no_library(loaded: dict[str, set[str]]) -> None:
    assert not loaded["package"] & {*HEAVY, "pydantic", "typer", "yaml"}


def test_importing_pparallel_costs_little(loaded: dict[str, set[str]]) -> None:
    assert len(loaded["package"] - loaded["nothing"]) < 15  # pydantic brings hundreds


def test_importing_the_builder_imports_no_heavy_library(loaded: dict[str, set[str]]) -> None:
    assert not loaded["builder"] & {*HEAVY, "yaml"}


def test_listing_the_backends_imports_no_heavy_library(loaded: dict[str, set[str]]) -> None:
    assert not loaded["listing"] & {*HEAVY}
    assert not {each for each in loaded["listing"] if each.startswith("pparallel_") and "." in each}


def test_a_job_that_does_no_torch_work_imports_no_torch(loaded: dict[str, set[str]]) -> None:
    assert not loaded["job"] & {"torch", "numpy"}


def test_help_imports_only_what_help_needs() -> None:
    code = (
        "sys.argv = ['pparallel', '--help']\n"
        "from pparallel.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass"
    )
    (found,) = modules_after(code)
    assert not found & {*HEAVY, "pydantic", "yaml", "rich", "pparallel.builder"}


@pytest.mark.parametrize("name", pparallel.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    found = getattr(pparallel, name)
    assert found.__name__ == name
    assert name in dir(pparallel)


def test_version() -> None:
    assert pparallel.__version__.split(".")[0].isdigit()


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'biuld'\. Did you mean 'build'\?"):
        pparallel.biuld  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("WorkerLostError", "pparallel.errors"),
        ("ProcessPoolConfig", "pparallel_process.config"),
    ],
)
def test_a_name_that_lives_elsewhere_is_refused_with_its_home(name: str, home: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}': from {home} import {name}$"):
        getattr(pparallel, name)
