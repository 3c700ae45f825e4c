"""Members that torchrun starts, with the default transport: each makes its keys as it opens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typing_extensions import override

from pparallel.errors import AuthenticationError, CallTimeoutError, ConfigError
from pparallel.runtime.member import Member
from pparallel.testing.patience import PATIENCE
from pparallel_zmq import ZmqTransportConfig
from pparallel_zmq.address import torchrun_place
from pparallel_zmq.keys import Keyring, keyring

pytest.importorskip("torch")

from pparallel.runtime.exchange import Exchange

NAMES = ("a", "b")


def exchange(folder: Path, rank: int) -> Exchange:
    return Exchange(f"file://{folder}/store", rank, len(NAMES), PATIENCE)


def member(rank: int) -> Member:
    return Member(NAMES[rank], rank, rank, len(NAMES), NAMES)


def test_public_keys_alone_are_left_for_the_others(tmp_path: Path) -> None:
    exchanges = [exchange(tmp_path, rank) for rank in range(len(NAMES))]

    def opened(rank: int) -> Keyring:
        found = keyring(ZmqTransportConfig(), member(rank), exchanges[rank])
        assert found is not None
        return found

    with ThreadPoolExecutor(len(NAMES)) as threads:
        first, second = threads.map(opened, range(len(NAMES)))
    assert first.publics == second.publics
    assert first.secret != second.secret
    (stored,) = (each.read_bytes() for each in tmp_path.iterdir())
    assert all(each in stored for each in first.publics.values())
    assert first.secret not in stored
    assert second.secret not in stored


def test_a_member_that_leaves_no_key_is_named(tmp_path: Path) -> None:
    config = ZmqTransportConfig(rendezvous_timeout=0.05)
    with pytest.raises(CallTimeoutError, match="arrival of b"):
        keyring(config, member(0), exchange(tmp_path, 0))


def test_a_second_process_of_one_rank_is_refused(tmp_path: Path) -> None:
    class Overwritten(Exchange):
        @override
        def put(self, key: str, value: bytes) -> None:
            super().put(key, value)
            for rank in range(len(NAMES)):
                super().put(f"zmq-public:{rank}", b"of another")

    store = Overwritten(f"file://{tmp_path}/store", 0, len(NAMES), PATIENCE)
    with pytest.raises(AuthenticationError, match="another process is 'a'"):
        keyring(ZmqTransportConfig(), member(0), store)


def test_no_pair_is_made_where_keys_are_given_or_none_are_wanted(tmp_path: Path) -> None:
    config = ZmqTransportConfig(allow_insecure=True)
    assert keyring(config, member(0), exchange(tmp_path, 0)) is None
    assert exchange(tmp_path, 0).get("zmq-public:0") is None


def test_a_place_in_the_store_that_is_no_port_is_refused(tmp_path: Path) -> None:
    """Only on TCP do public keys alone prove who is there."""
    store = exchange(tmp_path, 1)
    store.put("zmq", b"ipc:///tmp/elsewhere")
    with pytest.raises(ConfigError, match="meet at a port"):
        torchrun_place(ZmqTransportConfig(), member(1), store)
