"""Functions of the script travel by name once a member has them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from pparallel.errors import SerializationError
from pparallel.runtime.rpc.codec import IS_PLAIN, Codec
from pparallel.runtime.rpc.script_functions import MOST, ReceivedFunctions, SentFunctions
from pparallel_serializers import DillSerializerConfig
from pparallel_serializers.dill import DillSerializer

SCRIPT = """
def helper(x):
    return x + 1

class Step:
    def by(self, x):
        return helper(x)

def outer():
    def inner():
        pass
    return inner
"""


@pytest.fixture
def script() -> dict[str, Any]:
    """Return the names of a script."""
    namespace: dict[str, Any] = vars(ModuleType("__main__"))
    exec(SCRIPT, namespace)
    return namespace


def edited(script: dict[str, Any], source: str) -> None:
    exec(source, script)


def test_what_does_not_stand_at_the_top_of_the_script_has_no_name(script: dict[str, Any]) -> None:
    functions = SentFunctions()
    for each in (script["outer"](), len, edited, script["Step"], script["Step"].by):
        assert functions.state(each) is None


def test_the_receiver_keeps_the_latest_of_each_sender(script: dict[str, Any]) -> None:
    functions = ReceivedFunctions()
    assert functions.get("a", "helper") is None
    functions.keep("a", script["helper"])
    functions.keep("b", script["outer"])
    functions.keep("a", len)
    functions.keep("a", script["outer"]())
    assert list(functions._kept["a"]) == ["helper"]
    assert functions.get("a", "helper") is script["helper"]
    assert functions.get("b", "helper") is None
    first = script["helper"]
    edited(script, "def helper(x):\n    return 0")
    functions.keep("a", script["helper"])
    assert functions.get("a", "helper") is not first
    functions.forget("a")
    assert functions.get("a", "helper") is None
    assert functions.get("b", "outer") is not None


def test_what_was_written_counts_as_sent_and_not_what_has_changed_meanwhile(
    script: dict[str, Any],
) -> None:
    codec = Codec(DillSerializer(DillSerializerConfig()), "m0")
    edited(script, "def user(x): return helper(x)")
    user, sent = script["user"], codec.call(script["user"], (1,), None, "m1")[3]
    assert sent is not None
    edited(script, "def helper(x): return 0")  # before the result comes
    codec.sent.note("m1", user, sent)
    flags, _, _, state = codec.call(user, (1,), None, "m1")
    assert (flags, state is None) == (0, False), "it is not sent again"
    codec.sent.note("m1", user, state or [])
    flags, _, _, state = codec.call(user, (1,), None, "m1")
    assert (flags, state) == (IS_PLAIN, None)


def test_no_more_are_kept_than_a_limit(script: dict[str, Any]) -> None:
    functions = ReceivedFunctions()
    for number in range(MOST + 10):
        edited(script, f"def f{number}(): pass")
        functions.keep("a", script[f"f{number}"])
    assert len(functions._kept["a"]) == MOST


def test_a_name_that_never_came_is_refused() -> None:
    codec = Codec(DillSerializer(DillSerializerConfig()), "m0")
    with pytest.raises(SerializationError, match="no earlier call brought it along"):
        codec.read_call(IS_PLAIN, (("__main__", "gone"), (), None, 0), [], "m1")
