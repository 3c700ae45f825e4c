"""The checker of histories, against one that tries every order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pparallel.testing.history import Operation, Unknown, check
from pparallel.testing.linearizability.model import MODEL, State, apply

DEPTHS = st.integers(1, 3)
VERSIONS = st.integers(1, 3)
MAYBE = st.none() | VERSIONS
VALUES = st.sampled_from("xyz")
CALLS = st.one_of(
    st.tuples(st.just("push"), st.tuples(VALUES, VERSIONS, MAYBE)),
    st.tuples(st.just("pull"), st.tuples(MAYBE)),
    st.tuples(st.just("wait"), st.tuples(MAYBE, st.sampled_from([0, 0.1]))),
    st.tuples(st.just("versions"), st.just(())),
    st.tuples(st.just("delete"), st.just(())),
)
RESULTS: dict[str, st.SearchStrategy[Any]] = {
    "push": st.booleans(),
    "pull": st.none() | st.tuples(VALUES, VERSIONS),
    "wait": st.none() | st.tuples(VALUES, VERSIONS),
    "versions": st.lists(VERSIONS, max_size=3, unique=True),
    "delete": st.booleans(),
}


def is_accepted(history: Sequence[Operation], depth: int) -> bool:
    try:
        check(history, depth)
    except AssertionError:
        return False
    return True


def has_an_order(left: Sequence[Operation], depth: int, state: State = ()) -> bool:
    """Try every operation that may come next, and after it every other."""
    if not any(each.is_known for each in left):
        return True
    for number, each in enumerate(left):
        others = [*left[:number], *left[number + 1 :]]
        if any(other.is_known and other.end < each.start for other in others):
            continue
        timed_out = each.name == "wait" and each.result is None and each.arguments[1] != 0
        fits, after = apply(state, each, depth)
        if (fits or timed_out) and has_an_order(others, depth, after):
            return True
    return False


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Up to five operations with results that make sense or do not."""
    found = []
    for name, arguments in draw(st.lists(CALLS, min_size=1, max_size=5)):
        start = draw(st.integers(0, 6))
        result = draw(RESULTS[name] | st.builds(Unknown))
        found.append(Operation("k", name, arguments, result, start, start + draw(WIDTHS)))
    return found


WIDTHS = st.integers(1, 6).map(lambda each: each - 0.5)


@settings(max_examples=150, database=None)
@given(histories(), DEPTHS)
def test_it_finds_an_order_where_there_is_one(history: list[Operation], depth: int) -> None:
    assert is_accepted(history, depth) == has_an_order(history, depth)


def produced(draw: random.Random, count: int, depth: int) -> Iterator[Operation]:
    """Do random operations one by one, each at a moment of its own, and widen their intervals.

    One in eight loses its result, and half of those do nothing.
    """
    state: State = ()
    for moment in range(count):
        name = draw.choices(list(MODEL), [6, 3, 2, 1, 1])[0]
        newest = state[-1][0] if state else None
        held = [version for version, _ in state] or [None]
        arguments: tuple[Any, ...] = {
            "push": (moment, draw.choice([moment, moment, held[0] or 0]), newest),
            "pull": (draw.choice([None, *held]),),
            "wait": (draw.choice([None, newest]), 0),
        }.get(name, ())
        if name == "push" and draw.random() < 0.2:
            arguments = (moment, moment, "no version")
        result, after = MODEL[name](state, depth, *arguments)
        is_lost = draw.random() < 1 / 8
        if not is_lost or draw.random() < 0.5:
            state = after
        start, end = moment - draw.uniform(0, 2.5), moment + draw.uniform(0, 2.5)
        yield Operation("k", name, arguments, Unknown() if is_lost else result, start, end)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_it_accepts_what_a_server_did(depth: int) -> None:
    for seed in range(40):
        check(produced(random.Random(seed), 120, depth), depth)
    assert depth


def changed(draw: random.Random, history: list[Operation]) -> list[Operation]:
    """Give one operation the result of another of its kind, or the contrary."""
    index = draw.choice([n for n, each in enumerate(history) if each.is_known])
    chosen = history[index]
    if isinstance(chosen.result, bool):
        result: Any = not chosen.result
    else:
        result = draw.choice([e.result for e in history if e.name == chosen.name and e.is_known])
    return [*history[:index], replace(chosen, result=result), *history[index + 1 :]]


def test_it_refuses_what_no_server_did() -> None:
    """Small histories, so that every order can be tried: it must say the same."""
    refused = 0
    for seed in range(150):
        draw = random.Random(seed)
        history = changed(draw, list(produced(draw, 6, 2)))
        is_possible = has_an_order(history, 2)
        assert is_accepted(history, 2) == is_possible, history
        refused += not is_possible
    assert refused > 40


def op(name: str, arguments: tuple[Any, ...], result: Any, start: float, end: float) -> Operation:
    return Operation("k", name, arguments, result, start, end)


def unknown_pushes(count: int) -> list[Operation]:
    return [op("push", (n, n, n - 1), Unknown(), n / 100, n / 100) for n in range(1, count + 1)]


def test_many_unknown_pushes_that_nobody_saw() -> None:
    pulls = [op("pull", (None,), (0, 0), n, n + 0.5) for n in range(2, 40)]
    check([op("push", (0, 0, None), True, 0, 0.001), *unknown_pushes(30), *pulls], depth=1)
    assert pulls


def test_many_unknown_pushes_that_took_effect_late() -> None:
    pulls = [op("pull", (None,), (n, n), n, n + 0.5) for n in range(2, 30)]
    check([op("push", (0, 0, None), True, 0, 0.001), *unknown_pushes(30), *pulls], depth=1)
    assert pulls


def test_it_says_when_it_cannot_decide() -> None:
    overwrites = [op("push", (n, 0, 0), Unknown(), 1, 2) for n in range(1, 20)]
    lie = op("pull", (None,), ("nobody pushed it", 0), 3, 4)
    history = [op("push", (0, 0, None), True, 0, 0.5), *overwrites, lie]
    with pytest.raises(RuntimeError, match="could not decide within 500 steps whether 21"):
        check(history, depth=1, limit=500)


def test_unknown_reads_say_nothing() -> None:
    reads = [op("pull", (None,), Unknown(), 1, 2) for _ in range(60)]
    waits = [op("wait", (1, 5), None, 1, 2) for _ in range(60)]
    check([op("push", ("a", 1, None), True, 0, 0.5), *reads, *waits], depth=1)
    with pytest.raises(AssertionError, match="not linearizable"):
        check([*reads, *waits, op("wait", (None, 0), ("a", 1), 3, 4)], depth=1)
