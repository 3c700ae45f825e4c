"""Serializers, and what comes of objects that they send."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pparallel.interfaces.serializer import Serializer
from pparallel_serializers import (
    CloudpickleSerializerConfig,
    DillSerializerConfig,
    PickleSerializerConfig,
    SafeSerializerConfig,
)
from pparallel_serializers.cloudpickle import CloudpickleSerializer
from pparallel_serializers.dill import DillSerializer
from pparallel_serializers.pickle import PickleSerializer
from pparallel_serializers.safe import SafeSerializer


@pytest.fixture
def dill() -> DillSerializer:
    return DillSerializer(DillSerializerConfig())


MADE: dict[str, Callable[[], Serializer]] = {
    "pickle": lambda: PickleSerializer(PickleSerializerConfig()),
    "dill": lambda: DillSerializer(DillSerializerConfig()),
    "cloudpickle": lambda: CloudpickleSerializer(CloudpickleSerializerConfig()),
    "safe": lambda: SafeSerializer(SafeSerializerConfig()),
}


@pytest.fixture(params=["pickle", "dill", "cloudpickle"])
def serializer(request: pytest.FixtureRequest) -> Serializer:
    return MADE[request.param]()


@pytest.fixture(params=MADE)
def each_serializer(request: pytest.FixtureRequest) -> Serializer:
    return MADE[request.param]()


def sent(serializer: Serializer, obj: Any) -> Any:
    return serializer.loads([bytearray(each) for each in serializer.dumps(obj)])


def run_script(text: str, tmp_path: Path, name: str = "script.py", **given: str) -> str:
    """Run *text* as ``__main__`` of a process of its own and return what it prints."""
    script = tmp_path / name
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, **given}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PREAMBLE = """
import os, sys, pathlib
from pparallel_serializers import DillSerializerConfig, mark_static_module
from pparallel_serializers.dill import DillSerializer
dill = DillSerializer(DillSerializerConfig())
def write(obj, name="object"):
    for i, each in enumerate(dill.dumps(obj)):
        pathlib.Path(os.environ["WHERE"], f"{name}.{i}").write_bytes(bytes(each))
def read(name="object"):
    found = sorted(pathlib.Path(os.environ["WHERE"]).glob(f"{name}.*"))
    return dill.loads([bytearray(each.read_bytes()) for each in found])
"""


@pytest.fixture
def across(tmp_path: Path) -> Callable[[str, str], str]:
    """Runs one script, then another in a process of its own: what the second one prints."""

    def run(writer: str, reader: str) -> str:
        where = str(tmp_path)
        preamble = textwrap.dedent(PREAMBLE)
        run_script(preamble + textwrap.dedent(writer), tmp_path, "writer.py", WHERE=where)
        return run_script(preamble + textwrap.dedent(reader), tmp_path, "reader.py", WHERE=where)

    return run
