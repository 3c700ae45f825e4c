"""Programs of the collective suite: members that leave, ends, time-outs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.testing.collective.messages import number
from pparallel.testing.collective.samples import finish
from pparallel.testing.patience import PATIENCE, until

if TYPE_CHECKING:
    from pparallel.builder import Runtime
    from pparallel.interfaces.collective import Collective

WOKEN = 10.0  #: seconds after which one that waits and was not woken has been forgotten

#: What a member may wait for that needs the other: it returns a function that waits.
WAITS: dict[str, Callable[[Collective, str], Callable[[], object]]] = {
    "recv": lambda group, device: lambda: group.recv(number(0, device), _other(group)),
    "irecv": lambda group, device: group.irecv(number(0, device), _other(group)).wait,
    "barrier": lambda group, device: group.barrier,
    "all_reduce": lambda group, device: _background(group.all_reduce, number(0, device)),
    "broadcast": lambda group, device: _background(
        group.broadcast, number(0, device), _other(group)
    ),
    "all_gather_object": lambda group, device: lambda: group.all_gather_object(1),
}

RECEIVES = ("recv", "irecv")  #: those that do not end although the other waits for the same


def _other(group: Collective) -> int:
    return next(rank for rank in group.ranks if rank != group.rank)


def _background(operation: Callable[..., Any], *args: object) -> Callable[[], object]:
    work = operation(*args, async_op=True)
    return lambda: work.wait(PATIENCE)


def lose_a_member(rt: Runtime, device: str) -> None:
    """The last member leaves while the first waits for it, in several groups at once."""
    world, last = rt.collective, rt.world_size - 1
    if rt.rank == 1:
        pair = world.new_group([0, 1])
        assert pair.all_gather_object("still here") == ["still here"] * 2
        world.recv(number(0, device), 0)
        return
    groups = {name: world.new_group([0, last]) for name in WAITS}
    if rt.rank == last:
        world.recv(number(0, device), 0)
        return
    pair = world.new_group([0, 1])
    waits = {name: WAITS[name](group, device) for name, group in groups.items()}
    threads, errors = _waiting(waits)
    world.send(number(0, device), last)
    _join(threads)
    assert {name: type(error) for name, error in errors.items()} == dict.fromkeys(
        WAITS, PeerLostError
    )
    assert all(rt.members[last] in str(error) for error in errors.values())
    for name, group in groups.items():
        with pytest.raises(PeerLostError, match=rt.members[last]):
            WAITS[name](group, device)()
    assert pair.all_gather_object("still here") == ["still here"] * 2
    world.send(number(0, device), 1)


def lose_all_senders(rt: Runtime, device: str) -> None:
    """Who receives from anyone goes on while anyone is left."""
    group = rt.collective
    if rt.rank == 0:
        sources = {group.recv(number(0, device)) for _ in range(rt.world_size - 1)}
        assert sources == set(range(1, rt.world_size))
        with pytest.raises(PeerLostError):
            group.recv(number(0, device))
    else:
        group.send(number(0, device), 0)


def _waiting(
    waits: dict[str, Callable[[], object]],
) -> tuple[list[threading.Thread], dict[str, BaseException]]:
    """Start a thread for each of *waits*; return them, and the errors that they will get."""
    errors: dict[str, BaseException] = {}

    def wait(name: str, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - looked at by the caller
            errors[name] = error

    threads = [threading.Thread(target=wait, args=each, daemon=True) for each in waits.items()]
    for each in threads:
        each.start()
    return threads, errors


def _join(threads: Sequence[threading.Thread]) -> None:
    end = time.monotonic() + WOKEN
    for each in threads:
        each.join(max(0.0, end - time.monotonic()))
    assert not any(each.is_alive() for each in threads), "somebody who waits was not woken"


def close_while_waiting(rt: Runtime, device: str) -> None:
    """The first member closes its collective while it waits, and the other waits for it."""
    world = rt.collective
    groups = {name: world.new_group([0, 1]) for name in WAITS}
    start = world.new_group([0, 1])
    if rt.rank == 0:
        threads, errors = _waiting({each: WAITS[each](groups[each], device) for each in WAITS})
        start.recv(number(0, device), 1)
        world.close()
        world.close()
        expected: type[BaseException] = ClosedError
    else:
        threads, errors = _waiting({each: WAITS[each](groups[each], device) for each in RECEIVES})
        start.send(number(0, device), 0)
        expected = PeerLostError
    _join(threads)
    assert {type(error) for error in errors.values()} == {expected}
    assert len(errors) == len(threads), "somebody who waits was told nothing"
    if rt.rank == 0:
        for call in (world.barrier, lambda: world.isend(number(0, device), 1)):
            with pytest.raises(ClosedError):
                call()


def fail_while_others_wait(rt: Runtime, device: str, name: str) -> None:
    """One member fails; the others wait for one that will never come."""
    pairs = rt.collective.new_group([0, 1]) if rt.rank < 2 else None
    rt.collective.barrier()
    if rt.rank == 2:
        raise KeyError("the first failure")
    if rt.rank == 0:
        assert pairs is not None
        WAITS[name](pairs, device)()
    rt.collective.barrier()


def come_late(rt: Runtime, device: str) -> None:
    """Who waits longer than a moment is not disturbed by a time-out of many years."""
    world, other = rt.collective, 1 - rt.rank
    for late in (0, 1):
        if rt.rank == late:
            threading.Event().wait(0.1)
        world.barrier()
        if rt.rank == late:
            world.send(number(late, device), other)
        else:
            found = number(-1, device)
            world.recv(found, late)
            assert found.item() == late


def time_out(rt: Runtime, device: str) -> None:
    """The config's time-out ends what waits too long, and leaves no receive behind."""
    world = rt.collective
    groups = [world.new_group([0, 1]) for _ in range(3)]
    if rt.rank == 0:
        kept = number(5, device)
        waits: dict[str, Callable[[], object]] = {
            "recv": lambda: groups[0].recv(kept, 1),
            "barrier": groups[1].barrier,
            "async": lambda: finish(groups[2].all_reduce(number(0, device), async_op=True), True),
        }
        threads, errors = _waiting(waits)
        _join(threads)
        assert {key: type(each) for key, each in errors.items()} == dict.fromkeys(
            waits, CallTimeoutError
        )
    rt.group().barrier(timeout=PATIENCE)
    if rt.rank == 1:
        groups[0].send(number(8, device), 0)
    rt.group().barrier(timeout=PATIENCE)
    if rt.rank == 0:
        assert kept.item() == 5, "a receive that had failed was filled"
        late = number(0, device)
        groups[0].recv(late, 1)
        assert late.item() == 8


def wait_again(rt: Runtime, device: str) -> None:
    """A caller's own time-out ends the wait and not the operation."""
    group = rt.collective
    if rt.rank == 0:
        tensor = number(0, device)
        work = group.irecv(tensor, 1)
        with pytest.raises(CallTimeoutError):
            work.wait(0.02)
        group.send(tensor, 1)
        until(work.is_completed, "the message did not come")
        assert work.wait() == 1
        assert tensor.item() == 3
    else:
        group.recv(number(0, device), 0)
        group.send(number(3, device), 0)
