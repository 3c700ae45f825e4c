"""Bytes that strangers and members send that no member would: who listens goes on."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from pathlib import Path

import member_pairs
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from zmq_bytes import connect, garbage, head, second
from zmq_peer import PLACES, meeting, opened, peers, transport

from pparallel.testing.patience import PATIENCE
from pparallel_ipc import IpcTransportConfig

NAMES = ["m0", "m1"]


def test_strangers_on_ipc(rounds: Iterable[random.Random]) -> None:
    with member_pairs.pair(IpcTransportConfig()) as there:
        door = Path(there.meeting.address, "0")
        for chance in rounds:

            @seed(chance.randrange(2**32))
            @settings(max_examples=200)
            @given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=3))
            def said(packets: list[bytes]) -> None:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
                    own.connect(str(door))
                    try:
                        for each in packets:
                            own.send(each)
                    except (BrokenPipeError, ConnectionResetError):
                        pass

            said()
            assert member_pairs.ask(there, b"?") == [b"?"]


@pytest.mark.parametrize("place", PLACES)
def test_strangers_on_zmq(place: str, rounds: Iterable[random.Random]) -> None:
    with meeting(NAMES, place) as met, peers(NAMES[1:], NAMES, met) as (other,):
        own = transport("m0", NAMES, met, liveness_bound=5.0)
        with opened(own) as asking:
            assert other.opened() == "open"
            for chance in rounds:

                @seed(chance.randrange(2**32))
                @settings(max_examples=200)
                @given(st.lists(garbage, min_size=1, max_size=10))
                def said(packets: list[bytes]) -> None:
                    for each in packets:
                        with connect(met.address) as stranger:
                            try:
                                stranger.sendall(each)
                            except OSError:
                                continue

                said()
                assert asking.call("m1", [b"here"], PATIENCE)
                assert other.call("m0", "there") == ["m1", "there"]


def test_members_on_zmq(rounds: Iterable[random.Random]) -> None:
    with meeting(NAMES, PLACES[1]) as met, peers(NAMES[1:], NAMES, met) as (other,):
        own = transport("m0", NAMES, met, liveness_bound=5.0)
        with opened(own) as asking, second(met) as hostile:
            assert other.opened() == "open"
            for chance in rounds:

                @seed(chance.randrange(2**32))
                @settings(max_examples=1000)
                @given(st.lists(head | st.binary(max_size=100), min_size=1, max_size=4))
                def said(parts: list[bytes]) -> None:
                    hostile.send_multipart(parts)

                said()
                assert asking.call("m1", [b"here"], PATIENCE)
                assert other.call("m0", "there") == ["m1", "there"]
