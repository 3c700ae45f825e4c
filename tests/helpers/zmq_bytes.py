"""Bytes that no member on ZeroMQ says, and connections to say them by."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import zmq
from hypothesis import strategies as st

from pparallel.interfaces.transport import Meeting
from pparallel_zmq import messages
from pparallel_zmq.address import Address


def curve(met: Meeting, name: str = "m1") -> dict[str, object]:
    """Return the options of a client that has a member's keys."""
    keys = {each: key.get_secret_value().encode() for each, key in met.keys[name].items()}
    return {
        "curve_serverkey": keys["public:m0"],
        "curve_publickey": keys[f"public:{name}"],
        "curve_secretkey": keys["secret"],
    }


@contextmanager
def second(met: Meeting, name: str = "m1") -> Iterator[zmq.Socket[bytes]]:
    """Give a second connection of a member to the first one, to say there what no member would."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as own:
        own.linger = 0
        for option, value in curve(met, name).items():
            setattr(own, option, value)
        own.connect(met.address)
        yield own


def connect(address: str) -> socket.socket:
    place = Address.parse(address)
    if place.is_tcp:
        return socket.create_connection((place.host, place.port), 5)
    own = socket.socket(socket.AF_UNIX)
    own.connect(place.path)
    return own


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01"


def greeting(mechanism: bytes) -> bytes:
    return (GREETING + mechanism.ljust(20, b"\0") + bytes(33))[:64]


garbage = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=200).map(lambda tail: greeting(b"CURVE") + tail),
    st.binary(max_size=200).map(lambda tail: greeting(b"PLAIN") + b"\x04\x32\x05HELLO" + tail),
    st.binary(max_size=200).map(lambda tail: greeting(b"NULL") + b"\x04\x26\x05READY" + tail),
    st.integers(0, 2**63).map(lambda n: greeting(b"NULL") + b"\x02" + n.to_bytes(8, "big")),
    st.integers(0, 64).map(lambda n: greeting(b"CURVE")[:n]),
)


head = st.builds(
    lambda kind, zero, count, number, tail: (
        struct.pack("<BB2xII", kind, zero, count, number) + tail
    ),
    st.sampled_from([0, *range(messages.FRAMES, messages.MORE + 2)]),
    st.sampled_from([0, 0, 0, 1]),
    st.one_of(st.integers(0, 5), st.sampled_from([2**16, 2**32 - 1])),
    st.integers(1000, 1005),
    st.one_of(
        st.binary(max_size=60),
        st.lists(st.integers(0, 2**64 - 1), max_size=5).map(
            lambda sizes: struct.pack(f"<{len(sizes)}Q", *sizes)
        ),
    ),
).filter(lambda part: part[0] != messages.BYE)  # which is believed
