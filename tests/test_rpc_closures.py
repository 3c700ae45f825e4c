"""Functions that travel by value: sent once, and never stale."""

from __future__ import annotations

import functools
import marshal
import math
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pparallel
from pparallel import Runtime
from pparallel.errors import SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.rpc import closures, wire
from pparallel.runtime.rpc.closures import KeptFunctions, SentFunctions
from pparallel.runtime.rpc.wire import QUICK, Kind, Status
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads
from pparallel_serializers import (
    DillSerializerConfig,
    PickleSerializerConfig,
    SafeSerializerConfig,
)


class Line:
    """One member that calls functions, and one that runs them."""

    def __init__(self, config: Any = None) -> None:
        self.serializer = pparallel.build(config or DillSerializerConfig())
        self.sent, self.kept = SentFunctions(self.serializer), KeptFunctions(self.serializer)

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what the function returns where it arrives."""
        return self.call(function, *args)[1]

    def call(self, function: Callable[..., Any], *args: Any, to: str = "b") -> tuple[str, Any]:
        """Return how the function travels too: as itself, with a number, or as a number."""
        told = self.sent.told(to, function)
        if told is None:
            found = self.serializer.loads(self.serializer.dumps(function))
            return "itself", found(*args)
        arrived = marshal.loads(marshal.dumps(told))
        found, new = self.kept.function("a", 1, arrived)
        if new:
            self.sent.kept(to, new)
        return "both" if told[1] else "number", found(*args)

    def ways(self, function: Callable[..., Any], *args: Any) -> list[str]:
        return [self.call(function, *args)[0] for _ in range(3)]


SENT_ONCE = ["both", "number", "number"]
ALWAYS = ["itself"] * 3


@pytest.fixture
def line() -> Line:
    return Line()


def adder(amount: Any) -> Callable[[Any], Any]:
    return lambda number: number + amount


def giving(value: Any) -> Callable[[], Any]:
    return lambda: value


def of_elsewhere(source: str, **namespace: Any) -> tuple[Any, dict[str, Any]]:
    """Return a function whose globals travel too, as those of ``__main__`` do, and these."""
    namespace = {"__name__": "elsewhere", "__builtins__": __builtins__, **namespace}
    exec(textwrap.dedent(source), namespace)
    return namespace.pop("f"), namespace


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
    assert line.ways(adder(7000), 1) == SENT_ONCE
    assert line.ways(adder(int("7000")), 1) == ["number"] * 3
    assert line.ways(adder(7001), 1) == SENT_ONCE


def test_each_member_gets_it_until_it_says_that_it_has_it(line: Line) -> None:
    function = adder(1)
    told = [line.sent.told("b", function) for _ in range(2)]
    assert told[0] == told[1]
    assert told[0] is not None
    assert told[0][1] is not None
    assert line.call(function, 1) == ("both", 2)
    assert line.call(function, 1) == ("number", 2)
    assert line.call(function, 1, to="c") == ("both", 2)
    assert line.call(function, 1, to="c") == ("number", 2)


def test_what_has_a_name_is_not_numbered(line: Line) -> None:
    assert line.ways(adder, 1) == ALWAYS
    assert line.sent.told("b", math.sqrt) is None
    assert line.sent.told("b", functools.partial(adder, 1)) is None


def test_a_serializer_that_sends_no_code_numbers_nothing() -> None:
    assert Line(PickleSerializerConfig()).sent.told("b", adder(1)) is None


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
    assert line.call(function) == ("number", (1, 2))


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
    assert line.call(function, 1.5) == ("number", 1)
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
    assert line.call(function)[0] == "number"


def test_new_code_is_seen(line: Line) -> None:
    function = adder(2)
    assert line(function, 3) == 5
    function.__code__ = multiplier(2).__code__
    assert line(function, 3) == 6


def multiplier(amount: int) -> Any:
    return lambda number: number * amount


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
        way, found = line.call(giving(value))
        assert way != "itself"
        assert repr(found) == repr(value)
        assert type(found) is type(value)


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


# -- what is remembered -----------------------------------------------------------------------


def test_no_more_than_so_many_are_kept(line: Line) -> None:
    def ways_of(number: int) -> str:
        return line.call(adder(number), 1)[0]

    assert {ways_of(n) for n in range(closures.FREELY)} == {"both"}
    assert {ways_of(n) for n in range(1000, 5000)} == {"itself"}
    assert len(line.kept) == len(line.sent) == closures.FREELY
    # There is room for those that are called again.
    assert [ways_of(4999) for _ in range(3)] == SENT_ONCE
    for _ in range(2):
        ways = [ways_of(n) for n in range(10_000, 10_400)]
    assert ways.count("both") == closures.MOST - closures.FREELY - 1
    assert len(line.kept) == len(line.sent) == closures.MOST
    assert {ways_of(n) for n in range(closures.FREELY)} == {"number"}


def test_code_that_is_made_again_and_again_is_not_kept(line: Line) -> None:
    for number in range(1500):
        assert line(eval(f"lambda: {number}")) == number
    assert len(line.sent) == closures.FREELY
    assert len(line.sent._reads) <= closures.MOST


def test_a_receiver_keeps_so_many_whatever_it_is_told(line: Line) -> None:
    told = line.sent.told("b", adder(1))
    assert told is not None
    for number in range(1, 3 * closures.MOST):
        function, new = line.kept.function("a", 1, (number, told[1]))
        assert function(1) == 2
        assert new in (0, number)
    assert len(line.kept) == 2 * closures.MOST


def test_the_functions_of_a_lost_member_are_forgotten(line: Line) -> None:
    told = line.sent.told("b", adder(1))
    assert told is not None
    for sender, session in (("a", 1), ("a", 2), ("c", 1)):
        assert line.kept.function(sender, session, told)[1] == told[0]
    line.kept.forget("a")
    assert len(line.kept) == 1
    function, _ = line.kept.function("a", 1, told)  # had arrived before
    assert (function(1), len(line.kept)) == (2, 1)


def test_a_number_that_means_nothing_is_refused(line: Line) -> None:
    assert line(adder(1), 1) == 2
    for sender, session, number in (("a", 1, 99), ("a", 2, 1), ("c", 1, 1)):
        with pytest.raises(SerializationError, match=f"function {number} of '{sender}'"):
            line.kept.function(sender, session, (number, None))
    data = bytes(memoryview(line.serializer.dumps(3)[0]))
    with pytest.raises(SerializationError, match="it is a int"):
        line.kept.function("a", 1, (5, (data, b"")))


def test_threads_that_call_the_same_functions(line: Line) -> None:
    functions = [adder(n) for n in range(100)]

    def call(_: int) -> list[Any]:
        return [line(each, 1) for _ in range(3) for each in functions]

    assert in_threads(4, call) == [[n + 1 for _ in range(3) for n in range(100)]] * 4
    assert len(line.kept) == 100


# -- between members --------------------------------------------------------------------------


def heard(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each request that this member sends."""
    sizes: list[int] = []
    last: list[Frames] = []

    def noting(name: str) -> None:
        carry = getattr(rt.transport, name)

        def carried(to: str, frames: Frames, *args: Any) -> Any:
            if not last or frames is not last[0]:  # one of them may be made of another
                last[:] = [frames]
                sizes.append(wire.size(frames))
            return carry(to, frames, *args)

        monkeypatch.setattr(rt.transport, name, carried)

    for name in ("call", "request", "send"):
        noting(name)
    return sizes


def test_calls_between_members(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(rt: Runtime) -> None:
        group = rt.group()
        group.barrier(PATIENCE)
        if rt.rank == 0:
            sizes = heard(rt, monkeypatch)
            calls: list[Callable[[Any, Any], Any]] = [
                lambda function, arg: group.rpc_sync(1, function, args=(arg,)),
                lambda function, arg: group.rpc_async(1, function, args=(arg,)).wait(),
            ]
            for call in calls:
                for argument in (1, torch.ones(3)):
                    function = multiplier(len(sizes))  # a new one
                    expected = argument * len(sizes)
                    seen = len(sizes)
                    results = [call(function, argument) for _ in range(3)]
                    assert [str(each) for each in results] == [str(expected)] * 3
                    first, *others = sizes[seen:]
                    assert max(others) < first - 100
            refs = [group.remote(1, adder(3), args=(n,)) for n in range(3)]
            assert [ref.to_here() for ref in refs] == [3, 4, 5]
            for _ in range(3):
                assert group.rpc_async(1, adder(9), args=(1,), idempotent=True).wait() == 10
        group.barrier(PATIENCE)

    assert pparallel.launch({"members": 2}, run) == [None] * 2


def test_a_function_that_raises_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(rt: Runtime) -> None:
        group = rt.group()
        group.barrier(PATIENCE)
        if rt.rank == 0:
            sizes = heard(rt, monkeypatch)
            for _ in range(3):
                with pytest.raises(LookupError, match="none"):
                    group.rpc_sync(1, lambda: dict[str, int]()["none"])
            assert max(sizes[1:]) < sizes[0] - 100
        group.barrier(PATIENCE)

    assert pparallel.launch({"members": 2}, run) == [None] * 2


def test_calls_in_flight_of_functions_that_change() -> None:
    def run(rt: Runtime) -> None:
        group = rt.group()
        group.barrier(PATIENCE)
        if rt.rank == 0:
            function, namespace = of_elsewhere("f = lambda x: (x, G)", G=0)
            calls = []
            for number in range(600):
                namespace["G"] = number % 7
                calls.append(group.rpc_async(1, function, args=(number,)))
            assert [each.wait() for each in calls] == [(n, n % 7) for n in range(600)]
        group.barrier(PATIENCE)

    assert pparallel.launch({"members": 2}, run) == [None] * 2


def test_safe_takes_no_function_by_its_number() -> None:
    evil = Line().sent.told("b", adder(1))

    def run(rt: Runtime) -> None:
        group = rt.group()
        group.barrier(PATIENCE)
        if rt.rank == 0:
            with pytest.raises(SerializationError, match="the call of adder"):
                group.rpc_sync(1, adder(1), args=(1,))
            bodies: list[tuple[int, Frames]] = [
                (0, rt.serializer.dumps((evil, (1,), {}))),
                (QUICK, [marshal.dumps((evil, (1,), {}))]),
            ]
            for number, (flags, body) in enumerate(bodies):
                for kind in (Kind.CALL, Kind.REGISTERED):
                    frames = wire.join(kind, body, flags=flags, session=1, number=2 * number + kind)
                    reply = rt.transport.call(rt.members[1], frames, PATIENCE)
                    assert wire.split(reply).kind != Status.OK
        group.barrier(PATIENCE)

    config = pparallel.RuntimeConfig(members=2, serializer=SafeSerializerConfig())
    assert pparallel.launch(config, run) == [None] * 2


OF_MAIN = """
    import math
    import sys

    import pparallel

    G, helper, kept = 1, math.floor, []


    def plain(x):
        return x, G


    def run(rt):
        global G, helper
        group = rt.group()
        group.barrier(30)
        if rt.rank == 0:
            short = lambda x: (helper(x), G)
            with_a_list = lambda: (len(kept), G, helper(1.5))
            for value in (1, 2, 1, True, 1, 1.0, None, 1):
                for helper in (math.floor, math.ceil):
                    G = value
                    for function in (short, plain, short, plain):
                        found = group.rpc_sync(1, function, args=(1.5,))
                        assert repr(found) == repr(function(1.5)), (found, value)
                    G = 99  # and what brings it there goes the long way
                    assert group.rpc_sync(1, with_a_list) == (0, 99, helper(1.5))
        group.barrier(30)


    if __name__ == "__main__":
        config = {"members": 2, "launcher": {"backend": "process"}}
        assert pparallel.launch(config, run) == [None] * 2
        print("all were new")
"""


def test_functions_of_main_share_its_globals_and_see_them_change(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(OF_MAIN))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "all were new\n", done.stderr
