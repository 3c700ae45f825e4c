"""What a user gives for a secret stands in no error."""

from __future__ import annotations

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
        pparallel.load(pparallel.RuntimeConfig, raw)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_a_secret_in_a_section_of_the_wrong_form_is_not_shown() -> None:
    raw = {"members": 2, "transport": [{"backend": "ipc", "key": SECRET}]}
    with pytest.raises(ConfigError, match="transport") as caught:
        pparallel.load(pparallel.RuntimeConfig, raw)
    assert SECRET not in str(caught.value)


def test_other_values_are_shown() -> None:
    with pytest.raises(ConfigError, match=r"transport\.lanes: .*not 'many'"):
        pparallel.load(pparallel.RuntimeConfig, {"transport": {"backend": "ipc", "lanes": "many"}})
