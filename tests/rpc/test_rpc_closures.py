"""Functions that travel by value: sent once, and never stale."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from closure_lines import ALWAYS, SENT_ONCE, Line, adder, giving, multiplier, of_elsewhere
from closure_lines import line as line
from hypothesis import given
from hypothesis import strategies as st

from pparallel_serializers import PickleSerializerConfig

# -- what is sent once ------------------------------------------------------------------------


def test_a_function_is_sent_once(line: Line) -> None:
    assert line.ways(lambda: 1) == SENT_ONCE
    assert line.ways(adder(7), 1) == SENT_ONCE
    assert line.ways(adder((1, ("a", None), b"c")), (2,)) == SENT_ONCE
    assert line.ways(giving(math)) == SENT_ONCE
    assert line.ways(giving(math.sqrt)) == SENT_ONCE
    assert line.ways(giving(textwrap.dedent)) == SENT_ONCE
    assert line.ways(giving(Path)) == SENT_ONCE
    assert line.ways(lambda: torch.ones(1)) == SENT_ONCE

    def annotated(number: int, *, by: float = 2.0) -> float:
        """Document itself."""
        return number * by

    assert line.ways(annotated, 2) == SENT_ONCE
    assert line(annotated, 2) == 4


def test_functions_of_the_same_code_with_the_same_values_are_one(line: Line) -> None:
    value = 7000
    assert line.ways(adder(value), 1) == SENT_ONCE
    assert line.ways(adder(value), 1) == ["number"] * 3
    assert line.ways(adder(7001), 1) == SENT_ONCE
    assert line.ways(adder(value), 1) == ["itself", "number", "number"]


def test_each_member_gets_it_until_it_says_that_it_has_it(line: Line) -> None:
    function = adder(1)
    told = [line.sent.told("b", function) for _ in range(3)]
    assert told[0] is None
    assert told[1] == told[2]
    assert told[1] is not None
    assert told[1][1] is not None
    assert line.call(function, 1) == ("both", 2)
    assert line.call(function, 1) == ("number", 2)
    assert line.call(function, 1, to="c") == ("both", 2)
    assert line.call(function, 1, to="c") == ("number", 2)


def test_what_has_a_name_is_not_numbered(line: Line) -> None:
    assert line.ways(adder, 1) == ALWAYS
    assert line.sent.told("b", math.sqrt) is None
    assert line.sent.told("b", functools.partial(adder, 1)) is None


def test_a_serializer_that_sends_no_code_numbers_nothing() -> None:
    line, function = Line(PickleSerializerConfig()), adder(1)
    assert [line.sent.told("b", function) for _ in range(3)] == [None] * 3


# -- what is never stale ----------------------------------------------------------------------


def test_a_changed_cell_is_seen(line: Line) -> None:
    amount: Any = 1
    function = lambda: amount  # noqa: E731
    for amount in (1, 2, True, 1.0, "1", None, 1, [1], 2):
        for _ in range(3):
            assert repr(line(function)) == repr(amount)


def test_a_changed_default_is_seen(line: Line) -> None:
    def function(one: Any = 1, *, two: Any = 2) -> Any:
        return one, two

    assert line.ways(function) == SENT_ONCE
    function.__defaults__ = (3,)
    assert line(function) == (3, 2)
    assert function.__kwdefaults__ is not None
    function.__kwdefaults__["two"] = 4
    assert line(function) == (3, 4)
    function.__defaults__ = ([],)
    assert line.ways(function) == ALWAYS
    function.__defaults__ = (1,)
    function.__kwdefaults__["two"] = 2
    assert [line.call(function) for _ in range(3)][2] == ("number", (1, 2))


def test_a_changed_global_is_seen(line: Line) -> None:
    function, namespace = of_elsewhere("f = lambda: (lambda: G)()", G=1)
    assert line.ways(function) == SENT_ONCE
    for value in (2, True, 1.0, None, (1,), {"not": "plain"}, 1):
        namespace["G"] = value
        for _ in range(3):
            assert repr(line(function)) == repr(value)
    del namespace["G"]
    with pytest.raises(NameError):
        line(function)
    namespace["G"] = None
    assert line(function) is None


def test_a_helper_with_another_meaning_is_seen(line: Line) -> None:
    function, namespace = of_elsewhere("f = lambda x: helper(x)", helper=math.floor)
    assert line.ways(function, 1.5) == SENT_ONCE
    namespace["helper"] = math.ceil
    assert line(function, 1.5) == 2
    namespace["helper"] = lambda x: x * 4  # has no name: it may call what changes
    assert line.ways(function, 1.5) == ALWAYS
    assert line(function, 1.5) == 6
    namespace["helper"] = math.floor
    assert [line.call(function, 1.5) for _ in range(3)][2] == ("number", 1)
    function, namespace = of_elsewhere("f = lambda x: float(x)")
    assert line(function, 1) == 1.0
    namespace["float"] = str  # in place of a builtin
    assert line(function, 1) == "1"


def test_what_a_function_is_called_is_seen(line: Line) -> None:
    function, _ = of_elsewhere("import sys\nf = lambda: sys._getframe().f_code.co_name")
    assert line.ways(function) == SENT_ONCE
    function.__name__ = "other"
    assert line.ways(function) == SENT_ONCE
    function.note = "changes"
    assert line.ways(function) == ALWAYS
    del function.note
    assert line.ways(function)[2] == "number"


def test_new_code_is_seen(line: Line) -> None:
    function = adder(2)
    assert line(function, 3) == 5
    function.__code__ = multiplier(2).__code__
    assert line(function, 3) == 6


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
ALIKE = st.sampled_from([0, False, 0.0, -0.0, 0j, -0j, 1, True, 1.0, math.nan, (1,), (True,), ()])


@given(st.lists(PLAIN | ALIKE, max_size=12))
def test_values_that_are_alike_are_not_confused(values: list[Any]) -> None:
    line = Line()
    for value in values * 2:
        for _ in range(3):
            way, found = line.call(giving(value))
            assert repr(found) == repr(value)
            assert type(found) is type(value)
        assert way == "number"


def writing() -> Iterator[tuple[str, Callable[..., Any], Any]]:
    count = 0

    def counting() -> int:
        nonlocal count
        count += 1
        return count

    def within() -> int:
        def inner() -> int:
            nonlocal count
            count += 1
            return count

        return inner()

    def factorial(number: int = 3) -> int:
        return number * factorial(number - 1) if number else 1

    kept: list[int] = []
    nested: Any = ()
    for _ in range(20):
        nested = (nested,)
    yield "a cell", counting, 1
    yield "a cell from within", within, 1
    yield "a list", lambda: len(kept), 0
    yield "an object", giving(Path("a")), Path("a")
    yield "a tensor", giving(torch.ones(2)), None
    yield "a method", lambda found=[].append: found(1), None
    yield "a function of its own", lambda: counting(), 1
    yield "globals", of_elsewhere("def f():\n global G\n G += 1\n return G", G=1)[0], 2
    yield "around", of_elsewhere("def f(): return globals().setdefault('n', G)", G=1)[0], 1
    yield "deep", giving(nested), None
    yield "long", giving("x" * 2**20), "x" * 2**20
    yield "itself", factorial, 6


CASES = {name: (function, result) for name, function, result in writing()}


@pytest.mark.parametrize("name", CASES)
def test_what_may_change_goes_along_each_time(line: Line, name: str) -> None:
    function, result = CASES[name]
    assert line.ways(function) == ALWAYS
    if result is not None:
        assert [line(function) for _ in range(3)] == [result] * 3


def test_a_cell_that_is_not_filled_yet(line: Line) -> None:
    filled: Any
    function = lambda: filled  # noqa: E731
    with pytest.raises(NameError):
        line(function)
    filled = 1
    assert line.ways(function) == SENT_ONCE
