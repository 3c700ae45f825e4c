"""``import pparallel`` is cheap, and every public name is there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import pparallel

HEAVY = ("torch", "zmq", "dill", "numpy", "scipy")


def modules_after(code: str) -> set[str]:
    """Return the names of the modules that a fresh interpreter has imported after *code*."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_importing_pparallel_imports_no_library() -> None:
    loaded = modules_after("import pparallel")
    assert not loaded & {*HEAVY, "pydantic", "typer", "yaml"}


def test_importing_pparallel_costs_little() -> None:
    new = modules_after("import pparallel") - modules_after("")
    assert len(new) < 15  # pydantic brings hundreds


def test_importing_the_builder_imports_no_heavy_library() -> None:
    loaded = modules_after("import pparallel; pparallel.build")
    assert not loaded & set(HEAVY)


def test_listing_the_backends_imports_no_heavy_library() -> None:
    listing = "from pparallel.registry import default_registry; default_registry().offers()"
    assert not modules_after(listing) & set(HEAVY)


def test_a_job_that_does_no_torch_work_imports_no_torch() -> None:
    code = """
import pparallel

def work(rt):
    rt.ordered_server.push(rt.name, [1], 1, None)
    rt.group().barrier()
    rt.collective.barrier()
    return sum(rt.pool.map(abs, [-1, rt.reducer.manages]))

assert pparallel.launch({"members": 3}, work) == [2, 1, 1]
"""
    assert not modules_after(code) & {"torch", "numpy"}


def test_help_imports_only_what_help_needs() -> None:
    code = (
        "sys.argv = ['pparallel', '--help']\n"
        "from pparallel.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass"
    )
    loaded = modules_after(code)
    assert not loaded & {*HEAVY, "pydantic", "yaml", "rich", "pparallel.builder"}


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
