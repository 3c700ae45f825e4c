"""Calls between members, as programs see them: order, interrupts, changed code, the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from exhausted import no_descriptors, no_threads
from rpc_members import Gates, add, add_late, between, first_of_two, launch, same, wait_at_gate

from pparallel import Runtime
from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    PeerLostError,
    ResourceExhaustedError,
)
from pparallel.runtime.rpc import Reply, RpcGroup, context
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads

BACKENDS = ["local", "ipc", "zmq"]
ACROSS = ["ipc", "zmq"]

# -- order ------------------------------------------------------------------------------------

started: list[int] = []


def note(n: int, waits: bool, _: bytes) -> None:
    started.append(n)
    assert not waits or Gates.opened.wait(PATIENCE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_of_a_thread_start_in_order(backend: str) -> None:
    """Also behind some that block, among small and large ones, waited for or not."""

    with first_of_two(backend) as group:
        started.clear()
        for n in range(300):
            call = group.rpc_sync if n % 7 == 3 else group.rpc_async
            call(1, note, args=(n, n % 49 == 0, bytes(100_000 if n % 11 == 5 else 10)))
        group.rpc_sync(1, int)
        until(lambda: len(started) == 300, "those behind a function that blocks do not start")
        Gates.opened.set()
    assert started == list(range(300))


# -- interrupts, time-outs --------------------------------------------------------------------


def waits(group: RpcGroup) -> list[Callable[[], object]]:
    held = group.rpc_async(1, wait_at_gate)
    large = (bytes(90_000),)
    return [
        held.result,
        held.wait,
        lambda: group.rpc_sync(1, wait_at_gate),
        lambda: group.remote(1, wait_at_gate).to_here(),
        lambda: group.barrier(PATIENCE),
        lambda: [group.rpc_async(1, wait_at_gate_with, args=large) for _ in range(3)],
    ]


def wait_at_gate_with(_: bytes) -> bool:
    return wait_at_gate()


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_signals_handler_raises_leaves_a_wait_and_the_member_goes_on(
    backend: str, error: type[BaseException]
) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise error("of the handler")

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with first_of_two(backend, max_in_flight=100_000) as group:
            calls = waits(group)
            for number, wait in enumerate(calls):
                interrupt = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1))
                interrupt.start()
                with pytest.raises(error, match="of the handler"):
                    wait()
                interrupt.join()
                if number < 5:  # the last of them has filled the window
                    assert group.rpc_async(1, same, args=(number,)).wait(PATIENCE) == number
                    assert group.rpc_sync(1, same, (number,), timeout=PATIENCE) == number
            later = group.rpc_async(0, same, args=(7,))
            Gates.opened.set()
            assert [calls[0](), calls[1]()] == [True, True], "an answer was lost"
            assert later.wait(PATIENCE) == 7
            assert group.rpc_sync(1, same, (8,), timeout=PATIENCE) == 8
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wait_for_a_result_ends_in_time_and_may_be_repeated(backend: str) -> None:
    with first_of_two(backend) as group:
        future = group.rpc_async(1, wait_at_gate, timeout=None)
        for wait in (future.wait, future.result, future.exception):
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                wait(0.2)
            assert 0.2 <= time.monotonic() - began < 5
        Gates.opened.set()
        assert future.wait(PATIENCE)


# -- code that changes ------------------------------------------------------------------------


def of_elsewhere(source: str, **namespace: Any) -> tuple[Any, dict[str, Any]]:
    """Return a function whose globals travel too, as those of ``__main__`` do, and these."""
    namespace = {"__name__": "elsewhere", "__builtins__": __builtins__, **namespace}
    exec(textwrap.dedent(source), namespace)
    return namespace.pop("f"), namespace


def test_what_a_function_refers_to_is_seen_as_it_is_when_it_is_called() -> None:
    """Whether the calls leave together, and however much alike the values are."""
    cell: Any = None

    def function(default: Any = None) -> Any:
        return cell, default

    other, namespace = of_elsewhere("f = lambda: (lambda: (G, helper(1.5)))()")
    with first_of_two() as group:
        for cell in (1, True, 1.0, "1", None, 0.0, -0.0, (1,), [1], 1):
            for helper in (round, abs, lambda x: -x):
                function.__defaults__ = (cell,)
                namespace.update(G=cell, helper=helper)
                found = [group.rpc_async(1, each) for each in (function, other) * 2]
                expected = [repr((cell, cell)), repr((cell, helper(1.5)))]
                assert [repr(each.wait()) for each in found] == expected * 2
                assert [repr(group.rpc_sync(1, each)) for each in (function, other)] == expected
        function.__code__ = (lambda default: (cell, "new")).__code__
        assert group.rpc_sync(1, function) == (1, "new")


def test_what_a_function_changes_is_not_kept_where_it_runs() -> None:
    count, kept = 0, list[int]()

    def counting() -> int:
        nonlocal count
        count += 1
        kept.append(1)
        return count + len(kept)

    with first_of_two() as group:
        functions: list[Callable[..., Any]] = [
            counting,
            lambda found=kept: [found.append(1), len(found) + 1][1],
            of_elsewhere("def f():\n global G\n G += 1\n return G", G=1)[0],
        ]
        for function in functions:
            assert [group.rpc_sync(1, function) for _ in range(4)] == [2] * 4
        function = lambda: filled  # noqa: E731
        with pytest.raises(NameError):
            group.rpc_sync(1, function)
        filled = 1
        assert group.rpc_sync(1, function) == 1


OF_MAIN = """
    import pparallel

    G, kept = 1, []


    def plain(x):
        return x, G


    def set_it(value):
        global G
        G = value
        kept.append(value)
        return helper(value)


    def helper(value):
        return -value


    def other(value):
        return value


    class Step:
        def by(self, value):
            return helper(value)


    def deep(value):
        return Step().by(value)


    def edits():
        global helper, other, Step, deep
        yield deep, -3
        helper = lambda value: other(value) + 1000
        yield deep, 1003
        other = lambda value: 0
        yield deep, 1000
        Step.by = lambda self, value: value
        yield deep, 3
        Step = type("Step", (), {"by": lambda self, value: 7})
        yield deep, 7
        deep = eval("lambda value: helper(1)", globals())
        yield deep, 1000


    def run(rt):
        global G
        group = rt.group()
        if rt.rank:
            return
        lambdas = lambda: (len(kept), G)
        for times in range(3):
            assert group.rpc_sync(1, plain, args=(1.5,)) == (1.5, 1), "filled once"
            assert group.rpc_sync(1, lambdas) == (0, 1)
            G = 99
        for times in range(3):
            assert group.rpc_sync(1, set_it, args=(times,)) == -times
            assert group.rpc_sync(1, plain, args=(None,)) == (None, times), "its own"
            assert group.rpc_sync(1, lambdas) == (times + 1, times)
        assert G == 99 and not kept
        for function, expected in edits():
            for to in (1, 2, 1, 2):
                assert group.rpc_sync(to, function, (3,)) == expected, "code follows"


    if __name__ == "__main__":
        config = {"members": 3, "launcher": {"backend": "process"}}
        assert pparallel.launch(config, run) == [None] * 3
        print("all are right")
"""


def test_members_keep_values_of_main_and_follow_its_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(OF_MAIN))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout == "all are right\n", done.stderr


# -- groups -----------------------------------------------------------------------------------


def test_a_group_within_another_shares_no_service_with_one_of_that_name() -> None:
    def program(rt: Runtime, _: RpcGroup) -> None:
        first = rt.group("a", [rt.name])
        second = rt.group("a/b", [rt.name])
        first.serve("b/c", lambda _: Reply("first"))
        second.serve("c", lambda _: Reply("second"))
        assert first.ask(rt.name, "b/c").body == "first"
        assert second.ask(rt.name, "c").body == "second"

    launch(between(program))


# -- the end, forks, what runs out ------------------------------------------------------------


runtimes: dict[str, Runtime] = {}
closed = threading.Event()


def close_own_transport() -> None:
    runtimes[context.endpoint().name].transport.close()
    closed.set()


@pytest.mark.parametrize("backend", ACROSS)
def test_a_function_may_close_its_member(backend: str) -> None:
    closed.clear()

    def program(rt: Runtime) -> None:
        group = rt.group()
        runtimes[rt.name] = rt  # no barrier: its reply may be the one that is lost
        until(lambda: len(runtimes) == 2, "the other member did not start")
        if rt.rank == 1:
            assert closed.wait(PATIENCE)
            with pytest.raises(ClosedError):
                group.rpc_sync(0, int, timeout=PATIENCE)
            assert is_over.wait(PATIENCE)
            return
        group.when_lost(lambda name, _: lost.append(name))
        with suppress(PeerLostError, ClosedError):  # its reply may leave before
            group.rpc_sync(1, close_own_transport, timeout=PATIENCE)
        until(lambda: lost == ["m1"], "its end is not reported")
        with pytest.raises(PeerLostError):
            group.rpc_sync(1, int, timeout=PATIENCE)
        found.append(group.rpc_sync(0, same, (1,), timeout=PATIENCE))
        is_over.set()

    lost: list[str] = []
    is_over = threading.Event()
    found: list[int] = []
    try:
        with pytest.raises(ClosedError, match="'m1' is closed"):
            launch(program, 2, backend)
    finally:
        runtimes.clear()
    assert found == [1]


@pytest.mark.parametrize("backend", ACROSS)
def test_without_descriptors_no_call_hangs_and_no_member_is_lost(backend: str) -> None:
    with first_of_two(backend) as group:
        lost: list[str] = []
        group.when_lost(lambda name, _: lost.append(name))
        with no_descriptors():
            for n in range(3):
                with suppress(ResourceExhaustedError):
                    assert group.rpc_async(1, add_late, (n, 1), timeout=PATIENCE).wait() == n + 1
        assert group.rpc_async(1, add_late, (1, 2), timeout=PATIENCE).wait() == 3
        assert group.rpc_sync(1, add, (1, 2), timeout=PATIENCE) == 3
        assert not lost, "a member is reported lost that had no descriptor"


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_threads_no_call_hangs(backend: str) -> None:
    with first_of_two(backend, handler_threads=4) as group:
        with no_threads():
            futures = [group.rpc_async(1, add_late, (n, 1), timeout=PATIENCE) for n in range(6)]
            errors = [each.exception(2 * PATIENCE) for each in futures]
            assert not any(isinstance(each, TimeoutError) for each in errors), "a call hangs"
        futures = [group.rpc_async(1, add_late, (n, 1), timeout=PATIENCE) for n in range(6)]
        assert [each.wait() for each in futures] == [*range(1, 7)]
        with pytest.raises(CallTimeoutError):
            group.rpc_sync(1, wait_at_gate, timeout=0.1)
        Gates.opened.set()


# -- clocks that are set ----------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_time_outs_go_by_no_clock_that_is_set(
    backend: str, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time

    with first_of_two(backend) as group:
        held = group.rpc_async(1, wait_at_gate, timeout=PATIENCE)
        waiting = threading.Timer(0.1, monkeypatch.setattr, (time, "time", lambda: now() + jump))
        waiting.start()
        began = time.monotonic()
        with pytest.raises(CallTimeoutError):
            group.rpc_sync(1, wait_at_gate, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 5
        waiting.join()
        assert not held.done()
        Gates.opened.set()
        assert held.wait(PATIENCE)
        in_threads(1, lambda _: group.rpc_sync(1, same, (1,), timeout=PATIENCE))
