"""Functions of the script travel by name once a member has them."""

from __future__ import annotations

from collections.abc import Callable
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

def deep(x):
    return Step().by(x)

values = [1]

def reads():
    return values

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


def sent(functions: SentFunctions, function: Any) -> bool:
    """Send a function to a member; return whether it had it."""
    state = functions.state(function)
    assert state is not None
    has = functions.has("m1", function, state)
    functions.note("m1", function, state)
    return has


def edited(script: dict[str, Any], source: str) -> None:
    exec(source, script)


@pytest.mark.parametrize(
    "edit",
    [
        lambda script: edited(script, "def deep(x):\n    return 0"),
        lambda script: edited(script, "def helper(x):\n    return x + 2"),
        lambda script: setattr(script["Step"], "by", lambda self, x: 0),
        lambda script: setattr(script["helper"], "__defaults__", (1,)),
        lambda script: edited(script, "class Step:\n    def by(self, x):\n        return 0"),
    ],
    ids=["itself", "helper", "method", "defaults", "class"],
)
def test_a_function_is_sent_again_when_code_that_it_reads_has_changed(
    script: dict[str, Any], edit: Callable[[dict[str, Any]], None]
) -> None:
    functions = SentFunctions()
    assert [sent(functions, script["deep"]) for _ in range(3)] == [False, True, True]
    edit(script)
    assert not sent(functions, script["deep"])
    sent(functions, script["deep"])  # again, where it reads other code now
    assert sent(functions, script["deep"])


def test_values_do_not_count_and_each_member_does(script: dict[str, Any]) -> None:
    functions = SentFunctions()
    assert not sent(functions, script["reads"])
    script["values"] = [2]
    assert sent(functions, script["reads"])
    state = functions.state(script["reads"])
    assert state is not None
    assert not functions.has("m2", script["reads"], state)


def test_what_does_not_stand_at_the_top_of_the_script_has_no_name(script: dict[str, Any]) -> None:
    functions = SentFunctions()
    for each in (script["outer"](), len, sent, script["Step"], script["Step"].by):
        assert functions.state(each) is None


def test_the_receiver_keeps_the_latest_of_each_sender(script: dict[str, Any]) -> None:
    functions = ReceivedFunctions()
    assert functions.get("a", "helper") is None
    functions.keep("a", script["helper"])
    functions.keep("b", script["deep"])
    functions.keep("a", len)
    assert functions.get("a", "helper") is script["helper"]
    assert functions.get("b", "helper") is None
    first = script["helper"]
    edited(script, "def helper(x):\n    return 0")
    functions.keep("a", script["helper"])
    assert functions.get("a", "helper") is not first


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
