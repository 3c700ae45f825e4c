"""Functions that are sent once: what is remembered of them, and calls between members."""

from __future__ import annotations

import gc
import marshal
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from closure_lines import Line, adder, giving, multiplier, of_elsewhere
from closure_lines import line as line
from rpc_members import between, launch

import pparallel
from pparallel import Runtime
from pparallel.errors import SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.rpc import RpcGroup, closures, wire
from pparallel.runtime.rpc.wire import QUICK, Kind, Status
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads
from pparallel_serializers import SafeSerializerConfig

# -- what is remembered -----------------------------------------------------------------------


def test_no_more_than_so_many_are_kept(line: Line) -> None:
    for number in range(2 * closures.MOST):
        function = eval(f"lambda: {number}")
        assert [line(function) for _ in range(3)] == [number] * 3
    assert len(line.sent._numbers) == line.size() == closures.MOST
    assert len(line.sent._last) <= closures.MOST


def test_a_receiver_keeps_so_many_whatever_it_is_told(line: Line) -> None:
    function = adder(1)
    told = [line.sent.told("b", function) for _ in range(2)][1]
    assert told is not None
    for number in range(1, 3 * closures.MOST):
        found, new = line.kept.function("a", 1, (number, told[1]))
        assert found(1) == 2
        assert new in (0, number)
    assert line.size() == 2 * closures.MOST


def test_functions_that_are_called_once_are_not_kept(line: Line) -> None:
    assert {line.call(adder(number), 1)[0] for number in range(1000, 3000)} == {"itself"}
    assert line.size() == 0


def test_nothing_is_held_that_may_change(line: Line) -> None:
    held = Held()
    gone = weakref.ref(held)
    assert [line.sent.told("b", giving(held)) for _ in range(3)] == [None] * 3
    del held
    gc.collect()
    assert gone() is None


class Held:
    pass


def test_the_functions_of_a_lost_member_are_forgotten(line: Line) -> None:
    function = adder(1)
    told = [line.sent.told("b", function) for _ in range(2)][1]
    assert told is not None
    for sender, session in (("a", 1), ("a", 2), ("c", 1)):
        assert line.kept.function(sender, session, told)[1] == told[0]
    line.kept.forget("a")
    assert line.size() == 1
    found, _ = line.kept.function("a", 1, told)  # had arrived before
    assert (found(1), line.size()) == (2, 1)


def test_a_number_that_means_nothing_is_refused(line: Line) -> None:
    function = adder(1)
    assert line.ways(function, 1)[2] == "number"
    for sender, session, number in (("a", 1, 99), ("a", 2, 1), ("c", 1, 1)):
        with pytest.raises(SerializationError, match=f"function {number} of '{sender}'"):
            line.kept.function(sender, session, (number, None))
    data = bytes(memoryview(line.serializer.dumps(3)[0]))
    with pytest.raises(SerializationError, match="it is a int"):
        line.kept.function("a", 1, (5, (data, b"")))


def test_threads_that_call_the_same_functions(line: Line) -> None:
    functions = [eval(f"lambda number: number + {n}") for n in range(100)]

    def call(_: int) -> list[Any]:
        return [line(each, 1) for _ in range(3) for each in functions]

    assert in_threads(4, call) == [[n + 1 for _ in range(3) for n in range(100)]] * 4
    # As some bytes of a function may differ, if seldom, threads send one of them more than once.
    assert 100 <= line.size() <= 200


# -- between members --------------------------------------------------------------------------


def loaded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that gets each function that is read from bytes in this process."""
    found: list[object] = []
    load = closures.KeptFunctions._load

    def noting(kept: closures.KeptFunctions, data: Any) -> Any:
        found.append(data)
        return load(kept, data)

    monkeypatch.setattr(closures.KeptFunctions, "_load", noting)
    return found


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
    functions = loaded(monkeypatch)

    def program(rt: Runtime, group: RpcGroup) -> None:
        calls: list[Callable[[Any, Any], Any]] = [
            lambda function, arg: group.rpc_sync(1, function, args=(arg,)),
            lambda function, arg: group.rpc_async(1, function, args=(arg,)).wait(),
        ]
        for number, call in enumerate(calls):
            for argument in (1, torch.ones(3)):
                function = multiplier(3 + number)
                results = [call(function, argument) for _ in range(4)]
                assert [str(each) for each in results] == [str(argument * (3 + number))] * 4
        assert len(functions) == 2
        function = adder(3)
        refs = [group.remote(1, function, args=(n,)) for n in range(4)]
        assert [ref.to_here() for ref in refs] == [3, 4, 5, 6]
        assert len(functions) == 3
        for _ in range(3):
            assert group.rpc_async(1, adder(9), args=(1,), idempotent=True).wait() == 10

    launch(between(program))


def test_calls_in_flight_of_a_function_that_is_kept_leave_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(rt: Runtime) -> None:
        group = rt.group()
        group.barrier(PATIENCE)
        if rt.rank == 0:
            sizes = heard(rt, monkeypatch)
            assert [group.rpc_sync(1, adder(5), args=(1,)) for _ in range(2)] == [6, 6]
            calls = [group.rpc_async(1, adder(5), args=(n,)) for n in range(640)]
            assert [each.wait() for each in calls] == [n + 5 for n in range(640)]
            assert len(sizes) < 640 / 2
        group.barrier(PATIENCE)

    assert pparallel.launch({"members": 2, "transport": {"backend": "zmq"}}, run) == [None] * 2


def test_a_function_that_raises_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = loaded(monkeypatch)

    def program(rt: Runtime, group: RpcGroup) -> None:
        function = lambda: dict[str, int]()["none"]  # noqa: E731
        for _ in range(4):
            with pytest.raises(LookupError, match="none"):
                group.rpc_sync(1, function)
        assert len(functions) == 1

    launch(between(program))


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
    line, function = Line(), adder(1)
    evil = [line.sent.told("b", function) for _ in range(2)][1]
    assert evil is not None

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
                    header = wire.header(kind, flags, len(body), 1, 0, 2 * number + kind, 0.0)
                    reply = rt.transport.call(rt.members[1], [header, *body], PATIENCE)
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
