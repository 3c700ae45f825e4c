"""The arguments of calls, futures and references, as programs of torch and of pools type them."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, as_completed, wait
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest

import pparallel
from pparallel.errors import CallTimeoutError, DirectoryError
from pparallel.runtime.rpc.future import RpcFuture
from pparallel.testing.patience import PATIENCE, until

if TYPE_CHECKING:
    from pparallel.builder import Runtime
    from pparallel.runtime.rpc import RpcGroup

GATE = threading.Event()


class Numbers:
    """A value with what Python looks up in a class."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.entered = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, at: int) -> int:
        return self.numbers[at]

    def __setitem__(self, at: int, value: int) -> None:
        self.numbers[at] = value

    def __contains__(self, value: int) -> bool:
        return value in self.numbers

    def __call__(self, by: int) -> list[int]:
        return [each * by for each in self.numbers]

    def __next__(self) -> int:
        return self.numbers.pop(0)

    def __enter__(self) -> int:
        self.entered += 1
        return self.entered

    def __exit__(self, *_: object) -> None:
        self.entered -= 1

    def add(self, value: int) -> None:
        self.numbers.append(value)

    @property
    def total(self) -> int:
        return sum(self.numbers)

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"no {name}"


def two(work: Callable[[RpcGroup], None], transport: str = "local") -> None:
    """Do *work* in the first of two members."""
    GATE.clear()

    def program(rt: Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            try:
                work(group)
            finally:
                GATE.set()
        group.barrier(PATIENCE)

    job = {"members": 2, "reducer": {"backend": "local"}, "transport": {"backend": transport}}
    pparallel.launch(job, program)


def wait_at_gate() -> int:
    GATE.wait(PATIENCE)
    return 3


def fail_at_gate() -> None:
    GATE.wait(PATIENCE)
    raise LookupError


CALLS = ["rpc_sync", "rpc_async", "remote"]


@pytest.mark.parametrize("how", CALLS)
def test_arguments_have_the_order_of_torch(how: str) -> None:
    def work(group: RpcGroup) -> None:
        call: Any = getattr(group, how)
        found = call(1, divmod, (7, 2))
        found = found.to_here() if how == "remote" else found
        assert (found if how == "rpc_sync" or how == "remote" else found.wait()) == (3, 1)
        found = call(np.int64(1), sorted, ([1, 2],), {"reverse": True}, timeout=PATIENCE)
        found = found.to_here() if how == "remote" else found
        assert (found if how != "rpc_async" else found.wait()) == [2, 1]

    two(work)


@pytest.mark.parametrize("how", CALLS)
def test_a_number_in_the_place_of_the_arguments_is_refused_by_name(how: str) -> None:
    def work(group: RpcGroup) -> None:
        call: Any = getattr(group, how)
        with pytest.raises(TypeError, match=r"args is -1: give .* as a tuple, .*\(-1,\)"):
            call(1, abs, -1)
        with pytest.raises(TypeError, match=r"args is 'text': .* timeout=\.\.\."):
            call(1, len, "text")
        with pytest.raises(TypeError, match=r"kwargs is 5: .* as a dict"):
            call(1, abs, (-1,), 5)
        with pytest.raises(TypeError, match="positional"):
            call(1, abs, (-1,), None, 5)

    two(work)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_of_nothing_says_what_has_no_limit(timeout: float) -> None:
    def work(group: RpcGroup) -> None:
        ref = group.remote(1, dict[str, int])
        uses: list[Callable[..., Any]] = [
            lambda **kw: group.rpc_sync(1, abs, (1,), **kw),
            lambda **kw: group.rpc_async(1, abs, (1,), **kw),
            lambda **kw: group.remote(1, abs, (1,), **kw),
            group.barrier,
            ref.to_here,
            ref.rpc_sync,
        ]
        for use in uses:
            with pytest.raises(ValueError, match="more than 0, or None for no limit"):
                use(timeout=timeout)
        assert group.rpc_sync(1, abs, (-1,), timeout=None) == 1
        assert ref.to_here(None) == {}

    two(work)


def test_a_future_has_what_handles_of_pools_and_futures_of_torch_have() -> None:
    def work(group: RpcGroup) -> None:
        future = group.rpc_async(1, wait_at_gate)
        with pytest.raises(CallTimeoutError, match=r"'member-1' was not answered within 0\.01 s"):
            future.wait(0.01)
        assert not future.ready()
        with pytest.raises(ValueError, match="not ended"):
            future.successful()
        later = future.then(lambda done: done.value() + 1)
        GATE.set()
        assert future.get(PATIENCE) == future.value() == future.wait() == 3
        assert future.ready()
        assert future.successful()
        assert later.result(PATIENCE) == 4
        failed = group.rpc_async(1, divmod, (1, 0))
        with pytest.raises(ZeroDivisionError):
            failed.get(PATIENCE)
        assert not failed.successful()
        with pytest.raises(ZeroDivisionError):
            failed.then(lambda done: done.value()).result(PATIENCE)

        async def gather() -> list[int]:
            return [await group.rpc_async(1, abs, (n,)) for n in (-1, -2)]

        assert asyncio.run(gather()) == [1, 2]

    two(work)


def test_special_methods_of_a_remote_value() -> None:
    def work(group: RpcGroup) -> None:
        ref = group.remote(1, Numbers, (1, 2, 3))
        proxy: Any = ref.rpc_sync()
        assert proxy(2) == [2, 4, 6]
        assert len(proxy) == 3
        assert proxy[1] == 2
        proxy[1] = 5
        assert 5 in proxy
        assert next(proxy) == 1
        with proxy as entered:
            assert entered == 1
        later: Any = ref.rpc_async()
        assert later(2).wait() == [10, 6]
        assert later[0].wait() == 5

    two(work)


def test_what_a_reference_does_not_do_says_what_to_type() -> None:
    def work(group: RpcGroup) -> None:
        ref: Any = group.remote(1, Numbers, (1,))
        with pytest.raises(AttributeError, match=r"ref\.rpc_sync\(\)\.add\(\.\.\.\)"):
            ref.add(1)
        read = r"ref\.getattr\('total'\)"
        with pytest.raises(AttributeError, match=read):
            _ = ref.total
        with pytest.raises(TypeError, match=rf"'total' of Numbers is of type int .*{read}"):
            ref.rpc_sync().total()
        with pytest.raises(AttributeError, match=read):
            ref.rpc_sync().total.bit_length()
        assert "ref.getattr('total')" in repr(ref.rpc_sync().total)
        with pytest.raises(AttributeError, match="'numbers' of a remote value is not set"):
            ref.rpc_sync().numbers = [1]
        with pytest.raises(TypeError, match=r"group\.pair\(key, value\)"):
            pparallel.RemoteRef({})  # type: ignore[arg-type]
        assert not hasattr(ref, "_private")
        with pytest.raises(AttributeError, match="'lr'"):
            ref.lr = 0.1

    two(work)


class Context:
    """A context whose block may raise."""

    def __init__(self, result: object = None, *, suppresses: bool = False) -> None:
        self.result, self.suppresses = result, suppresses
        self.ends: list[str] = []

    def __enter__(self) -> object:
        return self if self.result is None else self.result

    def __exit__(self, kind: type | None, error: object, where: object) -> object:
        self.ends.append("none" if kind is None else f"{kind.__name__}: {error}")
        return 1 if self.suppresses else None

    def len(self) -> int:
        return len(self.ends)


class UnsendableError(Exception):
    def __init__(self) -> None:
        super().__init__("unsendable")
        self.lock = threading.Lock()


@pytest.mark.parametrize("transport", ["local", "ipc"])
@pytest.mark.parametrize("error", [ValueError("text"), UnsendableError(), KeyboardInterrupt()])
def test_a_block_that_raises_leaves_its_remote_context(
    transport: str, error: BaseException
) -> None:
    def work(group: RpcGroup) -> None:
        ref = group.remote(1, Context)
        with pytest.raises(type(error)) as caught, ref.rpc_sync():
            raise error
        assert caught.value is error
        assert error.__context__ is None
        [end] = ref.getattr("ends")
        kind = "RemoteError" if isinstance(error, UnsendableError) else type(error).__name__
        assert end.startswith(f"{kind}: ")
        assert str(error) in end
        lock = group.remote(1, threading.Lock)
        with pytest.raises(ZeroDivisionError), lock.rpc_sync():
            _ = 1 / 0
        assert lock.rpc_sync().locked() is False

    two(work, transport)


def test_a_remote_context_may_suppress_what_its_block_raises() -> None:
    def work(group: RpcGroup) -> None:
        ref = group.remote(1, Context, kwargs={"suppresses": True})
        with ref.rpc_sync():
            raise ValueError("text")
        with ref.rpc_sync():
            pass
        assert ref.getattr("ends") == ["ValueError: text", "none"]

    two(work)


def test_a_remote_context_that_returns_itself_gives_its_methods() -> None:
    def work(group: RpcGroup) -> None:
        ref = group.remote(1, Context)
        with ref.rpc_sync() as entered, ref.rpc_sync() as again:
            assert again.len() == entered.len() == 0
            assert again.ends is not None
        assert entered.len() == 2
        with group.remote(1, Context, ("result",)).rpc_sync() as entered:
            assert entered == "result"

    two(work)


@pytest.mark.parametrize("transport", ["local", "ipc"])
def test_an_entry_that_was_given_up_is_undone_when_it_comes(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    def work(group: RpcGroup) -> None:
        lock = group.remote(1, threading.Lock)
        for error in (CallTimeoutError, KeyboardInterrupt):
            assert lock.rpc_sync().acquire()
            with monkeypatch.context() as patch:
                if error is KeyboardInterrupt:
                    patch.setattr(RpcFuture, "result", interrupt)
                with pytest.raises(error), lock.rpc_sync(timeout=0.01):
                    raise AssertionError("it was entered")
            lock.rpc_sync().release()
            with lock.rpc_sync(timeout=PATIENCE):  # after the late entry, or before
                pass
            until(lambda: not lock.rpc_sync().locked(), "it is held")

    two(work, transport)


def test_what_needs_a_result_at_once_is_refused_where_there_is_none() -> None:
    def work(group: RpcGroup) -> None:
        ref = group.remote(1, Context)
        for proxy in (ref.rpc_async(), ref.remote()):
            with pytest.raises(TypeError, match=r"'with' needs .* ref\.rpc_sync\(\)"), proxy:
                raise AssertionError("it was entered")
            with pytest.raises(TypeError, match=r"'in' needs .* ref\.rpc_sync\(\)"):
                _ = 1 in proxy
            with pytest.raises(TypeError, match=r"'for' needs .* ref\.rpc_sync\(\)"):
                list(proxy)
        assert ref.getattr("ends") == []

    two(work)


def count_to(number: int) -> Iterator[int]:
    yield from range(1, number + 1)


def test_a_remote_value_is_iterated_where_it_is() -> None:
    def work(group: RpcGroup) -> None:
        assert list(group.remote(1, dict, ({"key": 1},)).rpc_sync()) == ["key"]
        assert [*group.remote(1, range, (3,)).rpc_sync()] == [0, 1, 2]
        assert sum(group.remote(1, count_to, (3,)).rpc_sync()) == 6
        items = iter(group.remote(1, set, ([1],)).rpc_sync())
        assert next(items) == 1
        assert next(items, None) is None
        with pytest.raises(TypeError, match="'int' object is not iterable"):
            list(group.remote(1, int).rpc_sync())
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(group.remote(1, int).rpc_sync())

    two(work)


def test_a_proxy_is_not_compared() -> None:
    def work(group: RpcGroup) -> None:
        proxy: Any = group.remote(1, int, (1,)).rpc_sync()
        compares: list[Callable[[], object]] = [
            lambda: bool(proxy),
            lambda: proxy == 1,
            lambda: proxy != 1,
        ]
        for compare in compares:
            with pytest.raises(TypeError, match=r"no truth.* ref\.to_here\(\) == "):
                compare()
        method = proxy.real
        with pytest.raises(TypeError, match=r"ref\.getattr\('real'\) .* has no truth"):
            bool(method)
        with pytest.raises(TypeError, match=r"ref\.getattr\('real'\) .* is not compared"):
            _ = method == 1
        assert {proxy: 1, method: 2}[method] == 2
        with pytest.raises(AttributeError, match=r"'__iadd__' .* group\.rpc_sync\(ref\.owner"):
            proxy.__iadd__(1)
        assert "RemoteRef(" in repr(proxy)

    two(work)


@pytest.mark.parametrize("transport", ["local", "ipc"])
def test_an_attribute_of_a_remote_value_is_read(transport: str) -> None:
    def work(group: RpcGroup) -> None:
        ref = group.remote(1, Numbers, (1, 2, 3))
        assert ref.getattr("total") == 6
        assert ref.getattr("numbers", timeout=PATIENCE) == [1, 2, 3]
        assert ref.getattr("other") == "no other"
        with pytest.raises(AttributeError, match="_other"):
            ref.getattr("_other")
        with pytest.raises(ValueError, match="more than 0"):
            ref.getattr("total", timeout=0)
        with pytest.raises(TypeError, match=r"no default: catch AttributeError; .* timeout=\.\.\."):
            ref.getattr("absent", 3)  # type: ignore[arg-type]

    two(work, transport)


@pytest.mark.parametrize("transport", ["local", "ipc"])
def test_the_owner_of_a_reference_has_a_name_and_a_rank(transport: str) -> None:
    def work(group: RpcGroup) -> None:
        owner = group.remote(1, Numbers).owner()
        assert owner == 1
        assert owner == "member-1"
        assert owner == pickle.loads(pickle.dumps(owner))
        assert owner not in (0, "member-0", None)
        assert not any(owner != each for each in (1, "member-1"))
        assert (owner.name, owner.id, {1: "key"}[owner]) == ("member-1", 1, "key")
        assert group.rpc_sync(owner, abs, (-1,)) == 1
        assert group.rpc_sync(1, str, (owner,)) == "1"
        assert group.is_member(owner)

    two(work, transport)


@pytest.mark.parametrize("transport", ["local", "ipc"])
def test_futures_are_waited_for_together(transport: str) -> None:
    def work(group: RpcGroup) -> None:
        futures = [group.rpc_async(1, abs, (-n,)) for n in range(50)]
        assert pparallel.wait_all(futures) == [*range(50)]
        late = group.rpc_async(1, wait_at_gate)
        with pytest.raises(TimeoutError):
            pparallel.wait_all([*futures, late], 0.01)
        together = pparallel.collect_all([late, *futures])
        total = together.then(lambda done: sum(each.result() for each in done.value()))
        assert not together.ready()
        GATE.set()
        assert total.then(lambda done: done.wait() + 1).wait(PATIENCE) == 3 + sum(range(50)) + 1
        assert together.value() == [late, *futures]
        failed = group.rpc_async(1, divmod, (1, 0))
        with pytest.raises(ZeroDivisionError):
            pparallel.wait_all([failed, *futures])
        assert pparallel.collect_all([failed, late]).wait(PATIENCE) == [failed, late]
        assert pparallel.collect_all([]).wait() == pparallel.wait_all([]) == []
        assert {*as_completed([late, *futures], PATIENCE)} == {late, *futures}

    two(work, transport)


def test_a_wait_for_the_first_exception_ends_with_it() -> None:
    def work(group: RpcGroup) -> None:
        failing, never = group.rpc_async(1, fail_at_gate), Future[None]()
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(wait, [failing, never], None, FIRST_EXCEPTION)
            try:
                until(lambda: bool(failing._waiters), "nobody waits")
                GATE.set()
                assert waiting.result(PATIENCE).done == {failing}
            finally:
                never.set_result(None)

    two(work)


def test_what_is_no_future_is_not_waited_for() -> None:
    def work(group: RpcGroup) -> None:
        ref: Any = group.remote(1, int)
        for wait_for in (pparallel.wait_all, pparallel.collect_all):
            with pytest.raises(TypeError, match=r"not pparallel\..*RemoteRef: .* to_here\(\)"):
                wait_for([group.rpc_async(1, abs, (1,)), ref])
        ours = group.rpc_async(1, wait_at_gate)
        for end in (ours.set_result, ours.set_exception):
            with pytest.raises(RuntimeError, match=r"concurrent\.futures\.Future\(\)"):
                end(None)
        with pytest.raises(RuntimeError, match=r"cancel\(\)"):
            ours.set_running_or_notify_cancel()
        with pytest.raises(CallTimeoutError, match="was not answered yet"):
            ours.value()
        GATE.set()
        assert ours.wait(PATIENCE) == 3

    two(work)


def test_register_takes_functions_alone() -> None:
    def work(group: RpcGroup) -> None:
        with pytest.raises(TypeError, match=r"a dict cannot be called: .* pair\(\) for values"):
            group.register("values", {})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^an int cannot be called"):
            group.register("values", 3)  # type: ignore[arg-type]
        assert not group.is_registered("values")
        group.register("power", pow)
        with pytest.raises(DirectoryError, match="'power' is already registered"):
            group.register("power", pow)
        assert group.registered_sync("power", (2, 3)) == 8

    two(work)


def test_what_is_no_function_is_not_sent() -> None:
    def work(group: RpcGroup) -> None:
        given: list[Any] = ["power", abs(-1), None]
        for each in given:
            with pytest.raises(TypeError, match=r"is no function: .* registered_sync\(\)"):
                group.rpc_sync(1, each, (2, 3))
        with pytest.raises(TypeError, match=r"args is None: .*rpc_sync\(to, func, \(\)\)"):
            group.rpc_sync(1, pow, None)  # type: ignore[call-overload]

    two(work)
