"""Members on Ray that die, stop, hang, come again or are strangers; and what they meet at."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayError

from pparallel.errors import CallTimeoutError, ClosedError, ConfigError, PeerLostError
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.links import process
from pparallel.testing.patience import PATIENCE, until
from pparallel_ray import RayTransportConfig
from pparallel_ray.cluster import RayConnection
from pparallel_ray.transport import transport as module
from pparallel_ray.transport.broker import NAMESPACE
from pparallel_ray.transport.connection import LOST
from pparallel_ray.transport.keys import JobKey, fresh
from pparallel_ray.transport.messages import LARGE, pack
from pparallel_ray.transport.transport import RayTransport
from ray_clusters import RAY_START
from ray_peer import BOUND, Peer, Talker, opened, peers, transport

pytestmark = pytest.mark.usefixtures("running_cluster")

ANNEX: dict[str, Any] = {
    "resources": {"annex": 1},
    "max_retries": 0,
    "runtime_env": {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
}


@contextmanager
def meeting(names: Sequence[str], **options: int) -> Iterator[Meeting]:
    with RayTransport.meeting(RayTransportConfig(**options), names) as met:
        yield met


@contextmanager
def job(count: int = 2, **options: Any) -> Iterator[tuple[Any, ...]]:
    """Open member m0 here, and others in processes of their own: (m0, the meeting, others...)."""
    names = [f"m{number}" for number in range(count)]
    queued = {each: options[each] for each in options if each == "max_queued"}
    with (
        meeting(names, **queued) as met,
        peers(names[1:], names, met) as others,
        opened(transport("m0", names, met, **options)) as own,
    ):
        assert [each.next() for each in others] == ["open"] * len(others)
        yield own, met, *others


def broker(met: Meeting) -> Any:
    return ray.get_actor(met.address.rpartition("/")[2], NAMESPACE)


def test_a_member_that_is_killed() -> None:
    with job(3) as (own, _, one, two):
        waiting = own.request("m1", [b"never"])
        own.call("m1", [b"here"], 20)
        os.kill(one.pid, signal.SIGKILL)
        assert "has died" in str(waiting.exception(PATIENCE))
        assert own.expect("m1")
        assert own.members() == ["m0", "m2"]
        until(lambda: [each[0] for each in two.lost()] == ["m1"], "m2 was not told")
        assert two.call("m0", "still") == ["m2", "still"]
        assert len(own.all) == 1
        with pytest.raises(PeerLostError):
            own.call("m1", [b"again"], 5)


def test_the_first_member_is_killed() -> None:
    names = ["m0", "m1", "m2"]
    with meeting(names) as met, peers(["m0", "m2"], names, met) as (first, other):
        own = transport("m1", names, met)
        with opened(own) as heard:
            assert (first.next(), other.next()) == ("open", "open")
            waiting = own.request("m0", [b"never"])
            os.kill(first.pid, signal.SIGKILL)
            assert isinstance(waiting.exception(PATIENCE), PeerLostError)
            assert heard.expect("m0")
            until(lambda: [each[0] for each in other.lost()] == ["m0"], "m2 did not see it")


@pytest.mark.parametrize("far", [False, True], ids=["this machine", "another"])
def test_a_member_that_is_stopped_is_given_up(far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if far:  # as the first member sees it; where the broker is, it is not
        monkeypatch.setattr(process, "_host_id", lambda: b"elsewhere" + bytes(7))
    with job() as (own, _, one):
        waiting = own.request("m1", [b"never"])
        own.call("m1", [b"here"], 20)
        os.kill(one.pid, signal.SIGSTOP)
        try:
            assert isinstance(waiting.exception(PATIENCE), PeerLostError)
            assert own.expect("m1")
        finally:
            os.kill(one.pid, signal.SIGCONT)
        until(lambda: bool(one.lost()), "it did not find out that it was given up")
        name, reason = one.lost()[0]
        assert name == "m0"
        assert "gave this member up" in reason


def _ends_late(own: Talker) -> bool:
    """Return whether a call of m1 takes longer than a member may be stopped."""
    began = time.monotonic()
    own.call("m1", [b"after"], 30)
    return time.monotonic() - began > BOUND


def test_a_member_that_holds_the_gil_is_kept() -> None:
    with job() as (own, *_):
        own.call("m1", [f"gil {3 * BOUND}".encode()], 20)
        until(lambda: _ends_late(own), "the GIL was not held")
        assert not own.all


def test_where_the_members_meet_is_killed() -> None:
    with job() as (own, met, one):
        waiting = own.request("m1", [b"never"])
        ray.kill(broker(met))
        assert isinstance(waiting.exception(PATIENCE), PeerLostError)
        assert "where the members met is no more" in own.expect("m1")
        until(lambda: [each[0] for each in one.lost()] == ["m0"], "m1 did not see it")
        with pytest.raises(PeerLostError):
            own.call("m1", [b"again"], 5)


def test_a_member_that_is_killed_amid_large_frames() -> None:
    names = ["m0", "m1", "m2"]
    with meeting(names) as met, peers(names[1:], names, met) as (one, two):
        seen = list[int]()

        def count(sender: str, frames: Frames) -> Frames:
            seen.append(len(memoryview(frames[1])) if len(frames) > 1 else 0)
            return frames[:1]

        own = transport("m0", names, met)
        with opened(own, count) as heard:
            assert (one.next(), two.next()) == ("open", "open")
            one.send_large("m0", 3_000_000)
            until(lambda: len(seen) > 3, "nothing came")
            os.kill(one.pid, signal.SIGKILL)
            assert heard.expect("m1")
            assert two.call("m0", "still") == ["still"]
            assert set(seen) == {3_000_000, 0}, "half a request was handled"
            large = own.call("m2", [b"large 3000000"], 20)
            assert len(memoryview(large[0])) == 3_000_000


def test_large_messages_arrive_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH", PATIENCE)
    names, seen = ["m0", "m1"], list[int]()

    def note(sender: str, frames: Frames) -> None:
        seen.append(int(bytes(frames[0])))

    with meeting(names) as met:
        other, own = (transport(name, names, met) for name in names)
        coming = threading.Thread(target=other.open)
        coming.start()
        with opened(own, note) as heard:
            coming.join()
            for number in range(100):
                other.request("m1", [b"%d" % number, bytes((LARGE + 1) * (number % 20 == 9))])
            other.close()
            assert other.peer("m1").confirmed.is_set()
            assert seen == [*range(100)]
            assert heard.expect("m0") == "has left"


def test_a_forked_child_closes_its_copy() -> None:
    """Such a child ends by ``os._exit``: Ray's own exit handlers do not work in it."""
    with job() as (own, *_):
        own.call("m1", [b"before", bytes(LARGE)])
        child, status = os.fork(), 1
        if not child:
            try:
                signal.alarm(int(PATIENCE))
                for use in (own.members, lambda: own.transport.send("m1", [b""])):
                    with pytest.raises(ClosedError, match=f"process {os.getppid()}"):
                        use()
                own.transport.close()
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(memoryview(own.call("m1", [b"large 200000"])[0])) == 200_000
        assert own.members() == ["m0", "m1"]
        assert not own.all


def test_what_is_too_much_waits_at_its_sender_and_nothing_is_dropped() -> None:
    with job(max_queued=200_000, liveness_bound=30.0) as (own, _, one):
        own.call("m1", [b"here"], 20)
        os.kill(one.pid, signal.SIGSTOP)
        sent = [own.request("m1", [b"%d" % n, bytes(30_000)]) for n in range(100)]
        os.kill(one.pid, signal.SIGCONT)
        replies = [int(bytes(memoryview(each.result(30)[1]))) for each in sent]
        assert replies == [*range(100)]
        assert not own.all


def test_a_message_without_its_large_frames_is_reported_on_both_sides() -> None:
    with job() as (own, *_):
        waiting = own.request("m1", [b"never"])
        own.peer("m1").put(pack([bytes(LARGE)])._replace(large=[]))
        error = waiting.exception(PATIENCE)
        assert isinstance(error, PeerLostError)
        assert "could not take a message" in str(error)
        assert own.call("m1", [b"here"])
        assert len(own.resets) == 1
        assert not own.all


def test_a_member_that_is_started_again_is_refused() -> None:
    names = ["m0", "m1"]
    with job() as (own, met, one):
        os.kill(one.pid, signal.SIGKILL)
        own.expect("m1")
        again = Peer("m1", names, met)
        try:
            assert "has been here already" in again.next()
        finally:
            again.end()
        assert own.members() == ["m0"]


def test_who_is_missing_is_named() -> None:
    names = ["m0", "m1", "m2"]
    with meeting(names) as met:
        ray.get(broker(met).node.remote())  # it is there
        own = transport("m0", names, met, rendezvous_timeout=5.0)
        with pytest.raises(CallTimeoutError, match=r"the arrival of m1, m2 .* 5 s"), opened(own):
            pass


def test_closing_while_others_are_waited_for() -> None:
    names = ["m0", "m1"]
    with meeting(names) as met:
        own = transport("m0", names, met)
        threading.Timer(0.3, own.close).start()
        with pytest.raises(ClosedError), opened(own):
            pass


def test_members_that_nobody_has_launched(running_cluster: RayConnection) -> None:
    names = ["m0", "m1"]
    met = Meeting(f"{running_cluster.address}/by-hand-{os.getpid()}", fresh(names))
    with peers(names[1:], names, met) as (one,):
        own = transport("m0", names, met)
        with opened(own):
            assert one.next() == "open"
            assert one.call("m0", "there") == ["m1", "there"]


def test_members_that_cannot_meet() -> None:
    keys = fresh(["m0", "m1"])
    for met, why in (
        (Meeting("", keys), "nothing says where"),
        (Meeting("torchrun://h:1/j/0", keys), "is none"),
        (Meeting("h:1/x"), r"secrets\.token_hex"),
    ):
        own = transport("m0", ["m0", "m1"], met)
        with pytest.raises(ConfigError, match=why), opened(own):
            pass


def test_strangers_are_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    names = ["m0", "m1"]
    stranger = JobKey(fresh(["m1"])["m1"])
    with meeting(names) as met, peers(names[1:], names, met) as (one,):
        seen = list[bytes]()

        def note(sender: str, frames: Frames) -> Frames:
            seen.append(bytes(frames[0]))
            return []

        own = transport("m0", names, met)
        with opened(own, note) as heard, caplog.at_level(logging.WARNING):
            assert one.next() == "open"
            met_at, data = broker(met), pack([b"evil"]).data
            for number, proof in enumerate((b"", stranger.proof(b"parcel"))):
                ray.get(met_at.push.remote("m0", (1, number, proof, data, []), len(data)))
            lie = LOST, "m1", b"has died", stranger.proof(b"lost", b"m1", b"has died"), None
            ray.get(met_at.notify.remote(lie))
            for junk in ((), "junk", None, (0, 0, b"", data, [data]), (9, 0, b"", data, [])):
                ray.get([met_at.push.remote("m0", junk, 0), met_at.notify.remote(junk)])
            assert one.call("m0", "after") == []
            assert seen == [b"after"]
            assert not heard.all
            assert sum("without the job's key" in each.message for each in caplog.records) == 1
            assert sum("has not sent" in each.message for each in caplog.records) == 2


def test_keys_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    names = ["m0", "m1"]
    with caplog.at_level(logging.DEBUG), meeting(names) as met:
        secret = met.keys["m0"]["job"].get_secret_value()
        with peers(names[1:], names, met) as (one,):
            own = transport("m0", names, met)
            with opened(own) as heard:
                assert one.next() == "open"
                os.kill(one.pid, signal.SIGKILL)
                reason = heard.expect("m1")
        told = [repr(met), repr(own), met.address, reason, repr(vars(own)), *os.environ.values()]
        told += [each.getMessage() for each in caplog.records]
        assert not any(secret in each for each in told)


def test_a_member_on_another_node(
    running_cluster: RayConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(running_cluster):
        _meet_on_another_node()  # this process sees its end
        monkeypatch.setattr(process, "_host_id", lambda: b"elsewhere" + bytes(7))
        _meet_on_another_node()  # it is seen from there


def _meet_on_another_node() -> None:
    names = ["m0", "m1"]

    def be_there(met: Meeting) -> None:
        """Be member m1, for as long as m0 is there."""
        there = transport("m1", names, met)
        with opened(there) as heard:
            there.call("m0", [b"pid %d" % os.getpid(), bytes(1_000_000)], 30)
            while not heard.all:
                time.sleep(0.05)

    pids = list[int]()

    def note(sender: str, frames: Frames) -> Frames:
        assert len(memoryview(frames[1])) == 1_000_000
        pids.append(int(bytes(frames[0]).split()[1]))
        return []

    with meeting(names) as met:
        task = ray.remote(be_there).options(**ANNEX).remote(met)
        own = transport("m0", names, met)
        with opened(own, note) as heard:
            assert not ray.wait([task], timeout=0)[0]
            assert len(memoryview(own.call("m1", [b"large 200000"], 30)[0])) == 200_000
            until(lambda: bool(pids), "it did not call")
            assert bytes(own.call("m1", [b"small"], 30)[1]) == b"small"
            os.kill(pids[0], signal.SIGKILL)
            assert heard.expect("m1")
        with pytest.raises(RayError):
            ray.get(task, timeout=30)


@contextmanager
def node(cluster: RayConnection) -> Iterator[None]:
    """Have another node in a cluster, with a resource ``annex``."""
    command = [*RAY_START, f"--address={cluster.address}", "--num-cpus=1"]
    command += ['--resources={"annex": 1}']
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as started:
        try:
            until(lambda: "annex" in ray.cluster_resources(), "no second node has started")
            yield
        finally:
            started.terminate()
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)


def test_the_cluster_is_lost() -> None:
    """In a process of its own, for Ray may end one whose cluster is no more."""
    sooner = {"PERIOD": "500", "TIMEOUT": "500", "INITIAL_DELAY": "1000"}
    hasty = {f"RAY_health_check_{name.lower()}_ms": each for name, each in sooner.items()}
    program = Path(__file__).with_name("ray_lost_cluster.py")
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        env={**os.environ, **hasty},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "where the members met is no more" in ended.stdout, ended.stderr
    assert ended.stdout.endswith("closed\n"), ended.stderr
    assert ended.returncode == 0
