"""Large values of a hosted server whose members share memory."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import preloads
import pytest
import torch
from crew import crew

import pparallel
from pparallel.builder import Runtime
from pparallel.errors import RemoteError, ResourceExhaustedError, SerializationError
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.runtime.rpc import RpcGroup
from pparallel.testing.patience import PATIENCE
from pparallel_serializers import DillSerializerConfig
from pparallel_servers.flat import LARGE, Flat, Flattener

ITEMS = 40_000  #: of a tensor that is large


def launch(target: Callable[..., Any], *args: Any, members: int = 2, **options: Any) -> list[Any]:
    config: dict[str, Any] = {
        "members": members,
        "launcher": {"backend": "process", "preload": preloads.MEMBERS},
        "ordered_server": {"backend": "hosted", "host": "member-0", "version_depth": 2},
        "reducer": {"backend": "local"},
        **options,
    }
    return pparallel.launch(pparallel.RuntimeConfig(**config), target, args)


def model() -> torch.nn.Module:
    layers = [torch.nn.Linear(200, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 3)]
    return torch.nn.Sequential(*layers)


def strange() -> dict[str, torch.Tensor]:
    """Return tensors of which some share memory, some have gaps, and some hold nothing."""
    whole = torch.arange(float(ITEMS)).view(200, 200)
    return {
        "whole": whole,
        "row": whole[3],
        "turned": torch.rand(150, 300).T,
        "bits": torch.arange(ITEMS, dtype=torch.int32).view(torch.uint8)[4:-4],
        "nothing": torch.empty(3, 0, 2),
        "one": torch.tensor(7, dtype=torch.int64),
        "short": torch.ones(300, dtype=torch.bfloat16),
        "imaginary": torch.ones(30, 2, dtype=torch.complex64) * 1j,
        "truth": torch.rand(500) > 0.5,
    }


VALUES: dict[str, Callable[[], Any]] = {
    "state": lambda: model().state_dict(),
    "strange": strange,
    "list": lambda: [torch.rand(200, 200), torch.rand(3)],
    "tuple": lambda: (torch.rand(200, 200), torch.rand(3)),
    "tensor": lambda: torch.rand(200, 200),
    "column": lambda: {"column": torch.rand(ITEMS, 2)[:, 1]},
    "parameters": lambda: OrderedDict(model().named_parameters()),
    "conjugate": lambda: {"x": torch.rand(ITEMS, dtype=torch.complex64).conj()},
    "nested": lambda: {"a": [torch.rand(ITEMS), {"b": torch.rand(5)}], "c": "text"},
    "array": lambda: np.random.default_rng(0).random((200, 200)),
    "bytes": lambda: b"x" * (1 << 20),
    "text": lambda: "x" * (1 << 20),
    "numbers": lambda: {1: torch.rand(ITEMS)},
}


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        told = [(type(x), x.dtype, x.shape, x.stride(), x.requires_grad) for x in (found, wanted)]
        return told[0] == told[1] and torch.equal(found, wanted)
    if isinstance(wanted, np.ndarray):
        return bool((found == wanted).all())
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        alike = list(found) == list(wanted) and vars_of(found) == vars_of(wanted)
        return alike and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return all(same(a, b) for a, b in zip(found, wanted, strict=True))
    return bool(found == wanted)


def vars_of(value: object) -> dict[str, Any]:
    return getattr(value, "__dict__", {})


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_comes_back_as_it_was(kind: str) -> None:
    serializer = pparallel.build(DillSerializerConfig())
    flattener, wanted = Flattener(serializer), VALUES[kind]()
    form = flattener.dumps(wanted)
    assert isinstance(form, Flat)
    memory = memoryview(bytearray(form.nbytes))
    form.write(memory)
    assert same(flattener.loads(form.head, memory), wanted)
    again = flattener.dumps(wanted)
    assert isinstance(again, Flat)
    assert again.head == form.head


def test_what_shares_memory_shares_it_again() -> None:
    flattener, wanted = Flattener(pparallel.build(DillSerializerConfig())), strange()
    form = flattener.dumps(wanted)
    assert isinstance(form, Flat)
    memory = memoryview(bytearray(form.nbytes))
    form.write(memory)
    found = flattener.loads(form.head, memory)
    found["whole"][3] += 1
    assert torch.equal(found["row"], wanted["row"] + 1)
    apart = [found[name].untyped_storage().nbytes() for name in ("short", "truth")]
    assert apart == [600, 500], "what stands alone can be saved alone"


@pytest.mark.parametrize(
    "value", [torch.ones(LARGE // 4 - 50), {"x": torch.ones(9)}, {}, [], (), None, 5, "text"]
)
def test_what_is_small_stays_as_its_serializer_made_it(value: Any) -> None:
    serializer = pparallel.build(DillSerializerConfig())
    form = Flattener(serializer).dumps(value)
    assert not isinstance(form, Flat)
    assert same(serializer.loads([bytearray(each) for each in form]), value)


def test_a_layout_is_known_by_all_that_it_depends_on() -> None:
    flattener = Flattener(pparallel.build(DillSerializerConfig()))
    wide = torch.rand(400, 200)
    first, second = OrderedDict(a=wide[:200]), OrderedDict(a=wide[:200])
    second.__dict__["_metadata"] = {"version": 2}
    values: list[Any] = [
        {"a": wide[:200]},
        {"b": wide[:200]},
        {"a": wide[200:]},
        {"a": wide[:200].T},
        {"a": wide[:200].view(torch.int32)},
        {"a": wide[:200].view(100, 400)},
        first,
        second,
        [wide[:200]],
        (wide[:200],),
    ]
    for value in values * 2:
        form = flattener.dumps(value)
        assert isinstance(form, Flat)
        memory = memoryview(bytearray(form.nbytes))
        form.write(memory)
        assert same(flattener.loads(form.head, memory), value)


# -- between members ------------------------------------------------------------------------------


def blocks(group: RpcGroup, of: str) -> int:
    """Return how many blocks of the shared memory of a member are in use."""
    gc.collect()
    arena = group.arena(of)
    assert arena is not None
    if of == group.get_cur_name():
        arena.trim()
    return arena.usage().blocks


def exchange(rt: Runtime, kinds: list[str]) -> None:
    """Have each member push, and all pull, into new memory and into what is there."""
    server, group = rt.ordered_server, rt.group()
    for kind in kinds:
        for writer in range(rt.world_size):
            torch.manual_seed(writer)
            wanted = VALUES[kind]()
            if rt.rank == writer:
                assert server.push(kind, wanted, writer, writer - 1)
            group.barrier(PATIENCE)
            found = server.pull(kind)
            assert found is not None
            assert found[1] == writer
            assert same(found[0], wanted)
            waited = server.wait(kind, "another", 0)
            assert waited is not None
            assert same(waited[0], wanted)
            scribble(found[0])
            group.barrier(PATIENCE)
            again = server.pull(kind)
            assert again is not None
            assert same(again[0], wanted), "what one had pulled was seen by another"
            del found, waited, again
            group.barrier(PATIENCE)
        assert server.versions(kind) == list(range(rt.world_size))[-2:]
    group.barrier(PATIENCE)
    if rt.rank == 0:
        for kind in kinds:
            assert server.delete(kind)
    group.barrier(PATIENCE)
    assert blocks(group, rt.name) == 0


def scribble(value: Any) -> None:
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.zero_()
    elif isinstance(value, np.ndarray):
        value[...] = 0
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            scribble(each)


@pytest.mark.parametrize("transport", ["ipc", "zmq"])
def test_all_kinds_of_values_between_members(transport: str) -> None:
    options = {"address": "ipc"} if transport == "zmq" else {}
    if transport == "zmq":
        launch(exchange_on_zmq, list(VALUES), transport={"backend": transport, **options})
    else:
        launch(exchange, list(VALUES), members=3)


def exchange_on_zmq(rt: Runtime, kinds: list[str]) -> None:
    server, group = rt.ordered_server, rt.group()
    for kind in kinds:
        torch.manual_seed(1)
        wanted = VALUES[kind]()
        assert rt.rank == 0 or server.push(kind, wanted, 1, None)
        group.barrier(PATIENCE)
        found = server.pull(kind)
        assert found is not None
        assert same(found[0], wanted)


def pull_into(rt: Runtime) -> None:
    server, group = rt.ordered_server, rt.group()
    wanted = {name: torch.full((300, 100), float(n)) for n, name in enumerate("abc")}
    if rt.rank == rt.world_size - 1:
        assert server.push("k", wanted, 1, None)
    group.barrier(PATIENCE)
    into = {name: torch.zeros(100, 300).T for name in wanted}
    found = server.pull("k", into=into)
    assert found is not None
    assert found[0] is into
    assert all(torch.equal(into[name], wanted[name]) for name in wanted)
    other = {name: torch.zeros(300, 100, dtype=torch.float64) for name in wanted}
    with pytest.raises(ValueError, match=r"value\['a'\] has dtype torch.float32"):
        server.pull("k", into=other)
    assert not any(each.any() for each in other.values())
    group.barrier(PATIENCE)
    assert blocks(group, rt.name) == (rt.rank == 0), "the host has one, and nobody reads it"


def test_values_are_copied_into_what_is_given() -> None:
    launch(pull_into)


Making = Callable[[], Any]

LARGE_ONES = {"a": (300, 100), "b": (50, 400), "c": (1,), "d": ()}


def filled(value: Any, into: Any, *, made: bool | None = None) -> Any:
    """Copy a value that lies in memory into *into*; *made*: whether tensors are made of it."""
    flattener = Flattener(pparallel.build(DillSerializerConfig()))
    form = flattener.dumps(value)
    assert isinstance(form, Flat)
    memory = memoryview(bytearray(form.nbytes))
    form.write(memory)
    loads, calls = flattener.loads, []
    flattener.loads = lambda *args: calls.append(args) or loads(*args)  # type: ignore[method-assign, func-returns-value]
    flattener.fill(form.head, memory, into)
    assert made is None or bool(calls) == made
    return into


def large_ones() -> dict[str, torch.Tensor]:
    return {name: torch.rand(shape) for name, shape in LARGE_ONES.items()}


def over_one_storage() -> dict[str, torch.Tensor]:
    whole = torch.rand(2 + sum(torch.Size(each).numel() for each in LARGE_ONES.values()))
    found, at = {}, 2
    for name, shape in LARGE_ONES.items():
        end = at + torch.Size(shape).numel()
        found[name] = whole[at:end].view(shape)
        at = end
    return found


@pytest.mark.parametrize("value", [large_ones, over_one_storage])
@pytest.mark.parametrize("into", [large_ones, over_one_storage])
def test_tensors_are_filled_without_making_others(value: Making, into: Making) -> None:
    wanted, given = value(), into()
    assert same(filled(wanted, given, made=False), wanted)
    assert same(
        filled(list(wanted.values()), list(into().values()), made=False), [*wanted.values()]
    )


def test_what_lies_beside_a_target_stays() -> None:
    wanted, given = large_ones(), over_one_storage()
    whole = given["a"]._base
    assert whole is not None
    before = whole[:2].clone()
    filled(wanted, given, made=False)
    assert torch.equal(whole[:2], before)


def turned() -> dict[str, torch.Tensor]:
    return {**large_ones(), "a": torch.rand(100, 300).T}


def in_another_order() -> dict[str, torch.Tensor]:
    return dict(reversed(large_ones().items()))


def ordered() -> OrderedDict[str, torch.Tensor]:
    return OrderedDict(large_ones())


@pytest.mark.parametrize(
    ("value", "into"),
    [
        (turned, large_ones),
        (large_ones, turned),
        (large_ones, in_another_order),
        (ordered, large_ones),
    ],
)
def test_what_does_not_lie_alike_is_filled_too(value: Making, into: Making) -> None:
    wanted = value()
    found = filled(wanted, into(), made=True)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    "changed", [{"b": torch.zeros(400, 50)}, {"b": torch.zeros(50, 400).int()}]
)
def test_what_does_not_fit_is_named_and_nothing_is_copied(changed: dict[str, Any]) -> None:
    given = {name: torch.zeros(shape) for name, shape in LARGE_ONES.items()} | changed
    with pytest.raises(ValueError, match=r"value\['b'\]"):
        filled(large_ones(), given)
    assert not any(each.any() for each in given.values())


def test_autograd_knows_what_was_filled() -> None:
    given = {name: torch.nn.Parameter(each) for name, each in large_ones().items()}
    output = (given["a"] * given["a"]).sum()
    filled(large_ones(), given, made=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


@pytest.mark.parametrize("at", [-64, 1 << 20])
def test_what_a_head_says_is_not_believed(at: int) -> None:
    flattener = Flattener(pparallel.build(DillSerializerConfig()))
    form = flattener.dumps({"a": torch.rand(300, 100)})
    assert isinstance(form, Flat)
    told = list(flattener.serializer.loads([form.head[1:]]))
    told[4] = [(at, form.nbytes)]
    (stream,) = flattener.serializer.dumps(told)
    memory = memoryview(bytearray(form.nbytes))
    with pytest.raises(SerializationError):
        flattener.fill(form.head[:1] + bytes(stream), memory, {"a": torch.rand(300, 100)})


def push_in_vain(rt: Runtime) -> None:
    server, group = rt.ordered_server, rt.group()
    if rt.rank == 1:
        assert server.push("k", torch.zeros(ITEMS), 1, None)
        for n in range(20):
            assert not server.push("k", torch.ones(ITEMS), n, "another")
    group.barrier(PATIENCE)
    assert blocks(group, "member-0") == 1


def test_a_push_that_is_refused_leaves_nothing() -> None:
    launch(push_in_vain)


def push_until_interrupted(rt: Runtime) -> None:
    server, group = rt.ordered_server, rt.group()
    if rt.rank == 1:
        write = Flat.write

        def interrupted(form: Flat, memory: memoryview) -> None:
            write(form, memory)
            raise KeyboardInterrupt

        Flat.write = interrupted  # type: ignore[assignment, method-assign]
        with pytest.raises(KeyboardInterrupt):
            server.push("k", torch.zeros(ITEMS), 1, None)
        Flat.write = write  # type: ignore[method-assign]
        assert server.pull("k") is None
        assert server.push("k", torch.ones(ITEMS), 1, None)
    group.barrier(PATIENCE)
    assert blocks(group, "member-0") == 1


def test_a_push_that_is_interrupted_leaves_nothing() -> None:
    launch(push_until_interrupted)


def overwrite(server: OrderedServer, times: int) -> None:
    for n in range(times):
        newest = server.versions("k")
        server.push("k", {"x": torch.full((ITEMS,), n)}, n, newest[-1] if newest else None)


def read_while_it_is_overwritten(rt: Runtime, times: int) -> int:
    server, seen = rt.ordered_server, 0
    if rt.rank == 1:
        overwrite(server, times)
        assert server.push("over", 1, 1, None)
    elif rt.rank > 1:
        into = {"x": torch.zeros(ITEMS, dtype=torch.int64)}
        while server.pull("over") is None:
            found = server.pull("k", into=into if seen % 2 else None)
            if found is not None:
                assert found[0]["x"].unique().tolist() == [found[1]]
                seen += 1
    rt.group().barrier(PATIENCE)
    return seen


def test_a_reader_never_sees_two_versions_in_one() -> None:
    seen = launch(read_while_it_is_overwritten, 300, members=4)
    assert min(seen[2:]) > 0


def run_short(rt: Runtime) -> int:
    server, done = rt.ordered_server, 0
    if rt.rank == 1:
        with suppress(ResourceExhaustedError):
            while server.push(done, torch.full((1 << 18,), done), 1, None):
                done += 1
        with pytest.raises(ResourceExhaustedError, match="its budget is 8388608 bytes"):
            server.push(done, torch.full((1 << 18,), done), 1, None)
        found = server.pull(0)
        assert found is not None
        assert found[0].unique().tolist() == [0]
        with pytest.raises(ResourceExhaustedError, match="its budget is 8388608 bytes"):
            server.pull(done - 1)  # which lies in this member's memory
        del found
        assert all(server.delete(each) for each in range(done))
        assert server.push("again", torch.full((1 << 18,), 7), 1, None)
        assert server.pull("again") is not None
    rt.group().barrier(PATIENCE)
    return done


def test_where_shared_memory_is_short_an_error_says_so_and_room_is_used_again() -> None:
    budget = {"backend": "ipc", "arena_budget": 8 << 20}
    _, done = launch(run_short, transport=budget)
    assert 4 <= done <= 8


@pytest.mark.parametrize("program", ["borrow_and_wait", "read_and_wait"])
def test_what_a_member_held_that_was_killed_is_free(tmp_path: Path, program: str) -> None:
    with crew(tmp_path, {"backend": "ipc"}) as members:
        server = {"ordered_server": {"backend": "hosted", "host": "a"}}
        members.start("a", "host_memory", "c", members.note("holds"), **server)
        members.start("b", "serve", members.note("over"), **server)
        members.start("c", program, members.note("holds"), **server)
        members.noted("looked")
        members.kill("c")
        assert members.answer("a") == (1, 0)
        members.note("over").touch()


def push_and_pull_too_much(rt: Runtime) -> list[str]:
    server, group, said = rt.ordered_server, rt.group(), []
    if rt.rank == 0:
        assert server.push("large", bytearray(1 << 21), 1, None)
    group.barrier(PATIENCE)
    if rt.rank == 1:
        for use in (
            lambda: server.push("mine", bytearray(1 << 21), 1, None),
            lambda: server.pull("large"),
            lambda: server.wait("large", timeout=PATIENCE),
        ):
            with pytest.raises((SerializationError, RemoteError)) as caught:
                use()
            said.append(str(caught.value))
        assert server.push("small", 5, 1, None)
        assert server.pull("small") == (5, 1)
    group.barrier(PATIENCE)
    return said


def test_a_value_too_large_for_the_transport() -> None:
    transport = {"backend": "zmq", "address": "ipc", "max_message": 1 << 20}
    _, said = launch(push_and_pull_too_much, transport=transport)
    assert len(said) == 3
    for each in said:
        assert "at most 1048576 are allowed; raise transport.max_message" in each
