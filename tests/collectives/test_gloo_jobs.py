"""Jobs on the collective ``gloo``: members that die, what does not fit, where members live."""

from __future__ import annotations

import itertools
import math
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gloo_programs as programs
import preloads
import pytest
import torch
from crew import crew
from gloo_among_threads import among_threads as among_threads

import pparallel
from pparallel.builder.blueprint import Blueprint
from pparallel.errors import CallTimeoutError, ClosedError, ConfigError
from pparallel.registry import default_registry
from pparallel.runtime.links import ProcessId
from pparallel.testing.patience import PATIENCE
from pparallel_torch import GlooCollectiveConfig
from pparallel_torch.collective import ends, torch_collective
from pparallel_torch.collective.store import JobStore


def launch(members: int, target: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Run a program in processes, and return what it returns in each."""
    raw: dict[str, Any] = {"members": [f"m{rank}" for rank in range(members)], **options}
    collective = raw.pop("collective", {"backend": "gloo", "timeout": PATIENCE})
    return pparallel.launch(
        {
            "launcher": {"backend": "process", "preload": preloads.MEMBERS},
            "collective": collective,
            "reducer": {"backend": "local"},
            **raw,
        },
        target,
        args,
    )


@pytest.mark.parametrize(
    ("program", "number"),
    [("reduce_for_ever", signal.SIGKILL), ("meet_for_ever", signal.SIGSTOP)],
    ids=["killed", "stopped"],
)
def test_a_lost_member_is_named(tmp_path: Path, program: str, number: signal.Signals) -> None:
    collective = {"backend": "gloo", "timeout": PATIENCE}
    with crew(tmp_path, {"backend": "ipc"}) as members:
        for name in "abc":
            note = members.note("began")
            parts = {"launcher": {"backend": "process"}, "collective": collective}
            members.start(name, f"gloo_programs:{program}", note, **parts)
        for rank in range(3):
            members.noted(f"began.{rank}")
        members.signal("c", number)
        for name in "ab":
            assert members.answer(name).startswith("member 'c' ")


def test_it_stands_beside_others(tmp_path: Path) -> None:
    critic = {"interface": "collective", "backend": "gloo"}
    assert launch(2, programs.beside_others, tmp_path, extra={"critic": critic}) == [None] * 2


def test_a_group_whose_time_is_over() -> None:
    collective = {"backend": "gloo", "timeout": 1.0}
    assert launch(2, programs.give_up_in_a_group, collective=collective) == [None] * 2


@pytest.mark.usefixtures("among_threads")
def test_a_member_that_leaves_when_its_part_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "GRACE", 0.0)
    parts = {"transport": {"backend": "local"}, "launcher": {"backend": "thread"}}
    assert launch(3, programs.leave_early, **parts) == [None] * 3


def test_wait_again() -> None:
    assert launch(2, programs.wait_twice) == [None] * 2


def test_nothing_is_left_when_groups_are_closed() -> None:
    assert launch(2, programs.leave_nothing) == [None] * 2


def test_what_gloo_does_not_know() -> None:
    assert launch(2, programs.dtypes) == [None] * 2


def test_over_zmq() -> None:
    transport = {"backend": "zmq"}
    assert launch(2, programs.dtypes, transport=transport) == [None] * 2


def test_by_the_launcher() -> None:
    """The collective ``gloo`` under torchrun, beside torch's own RPC."""
    parts = {"launcher": {"backend": "torchrun"}, "transport": {"backend": "torch_rpc"}}
    assert launch(2, programs.dtypes, **parts) == [None] * 2


@pytest.mark.usefixtures("among_threads")
@pytest.mark.parametrize(
    ("what", "begun", "other"),
    [
        ("operation", "rank 1 began barrier", "all_reduce by SUM on torch.float32 of shape (4,)"),
        ("root", "broadcast from position 1", "broadcast from position 0"),
        ("shape", "of shape (4,)", "of shape (3,) of rank 0"),
        ("dtype", "on torch.float64", "on torch.float32"),
        ("count", "of shape (4,), torch.float32 of shape (4,)", "all_reduce_coalesced"),
        ("device", "of shape (4,) on the device type meta", "of shape (4,) of rank 0"),
        ("parts", "scatter from position 0", "of shape (4,), torch.float32 of shape (2,)"),
        ("shapes", "all_gather on torch.float32 of shape (1,)", "of shape (2,) of rank 0"),
        ("own", "rank 1 began all_gather on torch.float32 of shape (1,), torch.float32", "(2,)"),
        ("pair", "rank 1 began all_to_all on torch.float32 of shape (1,), torch.float32", "(3,)"),
        ("handle", "of shape (4,)", "of shape (3,) of rank 0"),
    ],
)
def test_members_that_do_not_mean_the_same(what: str, begun: str, other: str) -> None:
    parts = {"transport": {"backend": "local"}, "launcher": {"backend": "thread"}}
    collective = {"backend": "gloo", "check": True, "timeout": PATIENCE}
    told = launch(2, programs.mixed_up, what, collective=collective, **parts)
    assert told[0] == told[1]
    assert begun in told[0]
    assert "which does not fit" in told[0]
    assert other in told[0]


def test_it_is_the_default_under_torchrun() -> None:
    config = {"members": 2, "launcher": {"backend": "torchrun"}}
    blueprint = Blueprint(pparallel.load(config), default_registry())
    assert isinstance(blueprint.component("collective"), GlooCollectiveConfig)


def test_one_member() -> None:
    with pparallel.build(GlooCollectiveConfig()) as alone:
        tensor = torch.ones(3)
        alone.all_reduce(tensor)
        alone.barrier()
        assert tensor.tolist() == [1.0] * 3
        with pytest.raises(ValueError, match=r"not one on 'meta': move the tensor to the CPU, or"):
            alone.all_reduce(tensor.to("meta"))
        with pytest.raises(ValueError, match="does not fit"):
            alone.all_gather([torch.ones(2)], tensor)
    with pytest.raises(ClosedError, match="is closed"):
        alone.all_reduce(tensor)


def test_threads_are_refused() -> None:
    config = {"members": 2, "collective": {"backend": "gloo"}}
    with pytest.raises(ConfigError, match="'gloo' works among machines or processes only"):
        pparallel.load(config)


def test_where_gloo_cannot_listen() -> None:
    for option, wrong in (("address", "203.0.113.1"), ("interface_name", "no-such-0")):
        collective = pparallel.build(GlooCollectiveConfig(**{option: wrong}))
        with pytest.raises(ConfigError, match="gloo cannot listen there") as caught, collective:
            pass
        assert caught.value.path.endswith(f".{option}")


@pytest.mark.usefixtures("among_threads")
def test_members_on_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    places = itertools.count()
    here = ProcessId.here()
    elsewhere = SimpleNamespace(here=lambda: here._replace(host_id=next(places).to_bytes(16)))
    monkeypatch.setattr(torch_collective, "ProcessId", elsewhere)
    parts = {"transport": {"backend": "local"}, "launcher": {"backend": "thread"}}
    with pytest.raises(ConfigError, match="is neither encrypted nor authenticated") as caught:
        launch(2, programs.dtypes, **parts)
    assert caught.value.path == "collective.allow_insecure"
    collective = {"backend": "gloo", "allow_insecure": True}
    assert launch(2, programs.dtypes, collective=collective, **parts) == [None] * 2


class SlowDesk:
    """Answers each question in less than the time-out, and several in more."""

    def ask(self, *_: object) -> Future[SimpleNamespace]:
        answer: Future[SimpleNamespace] = Future()
        threading.Timer(0.2, answer.set_result, [SimpleNamespace(body=b"value")]).start()
        return answer


def test_the_time_out_bounds_all_that_connecting_waits_for() -> None:
    desk: Any = SlowDesk()
    ends: Any = SimpleNamespace(check_all_here=lambda: None)
    group: Any = None
    store = JobStore(desk, group, "m0", ends, 1.0)
    with pytest.raises(CallTimeoutError, match="what torch waits for"):
        [store.get("key") for _ in range(6)]
    store.until = math.inf  # once connected, each value has the time-out
    assert store.get("key") == b"value"
