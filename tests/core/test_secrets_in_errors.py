"""What a user gives for a secret stands in no error."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from typing import Any

import pytest

import pparallel
from pparallel.errors import ConfigError

SECRET = "hush-hush"


@pytest.mark.parametrize(
    "given", [SECRET, [SECRET], {SECRET: 1}, SECRET.encode(), {"a": [SECRET]}], ids=type
)
def test_a_secret_of_the_wrong_form_is_not_shown(given: Any) -> None:
    raw = {"members": 2, "transport": {"backend": "ipc", "key": given}}
    with pytest.raises(ConfigError, match=r"^transport\.key: .*not shown") as caught:
        pparallel.load(raw)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_a_secret_in_a_section_of_the_wrong_form_is_not_shown() -> None:
    raw = {"members": 2, "transport": [{"backend": "ipc", "key": SECRET}]}
    with pytest.raises(ConfigError, match="transport") as caught:
        pparallel.load(raw)
    assert SECRET not in str(caught.value)


def test_other_values_are_shown() -> None:
    with pytest.raises(ConfigError, match=r"transport\.lanes: .*not 'many'"):
        pparallel.load({"transport": {"backend": "ipc", "lanes": "many"}})


@pytest.mark.parametrize("form", ["*{}", "!{} x", "[{}", '"{}', "{}: {}: x", "%{}", "{{{}: 1"])
def test_a_secret_that_is_no_yaml_is_not_shown(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = form.replace("{}", SECRET)
    monkeypatch.setenv("PPARALLEL__TRANSPORT__KEY", text)
    for overrides in ([], [f"transport.key={text}"]):
        with pytest.raises(ConfigError, match=r"(?i)transport.+key") as caught:
            pparallel.load({"members": 2, "transport": {"backend": "ipc"}}, overrides=overrides)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        monkeypatch.delenv("PPARALLEL__TRANSPORT__KEY", raising=False)


def test_a_secret_among_the_overrides_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="typed config") as caught:
        pparallel.load(pparallel.RuntimeConfig(), overrides=[f"transport.key={SECRET}"])
    assert SECRET not in str(caught.value)


PROGRAM = """
import os, subprocess, sys
import pparallel
raw = {"members": 2, "transport": {"backend": "ipc"}}
for _ in range(2):
    assert pparallel.load(raw).transport.key.get_secret_value() == "of sixteen letters"
child = "import os; print(sorted(name for name in os.environ if name.startswith('PPARALLEL__')))"
subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_programs_that_a_member_starts_have_no_secret_of_it() -> None:
    options = {"TRANSPORT__KEY": "of sixteen letters", "POOL__SIZE": "2"}
    own = {f"PPARALLEL__{name}": text for name, text in options.items()}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, timeout=60)
    assert done.stdout.decode() == "['PPARALLEL__POOL__SIZE']\n", done.stderr.decode()
