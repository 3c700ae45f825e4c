"""Laws of backends on Ray that hold most of the time, with the cause of each failure."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
from pparallel_ray import RayOrderedServerConfig, RayTransportConfig
from pparallel_ray.cluster import RayConnection
from ray_clusters import Clusters, belongs_to_ray, token

import pparallel
from pparallel.errors import ClosedError
from pparallel.testing import no_leftovers
from pparallel.testing.patience import PATIENCE
from pparallel.testing.transport.calls import order


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayConnection]:
    clusters = Clusters()
    with token():
        yield clusters.use("running")
        clusters.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(cluster: RayConnection) -> Iterator[None]:
    with no_leftovers(keeps=belongs_to_ray):
        yield


# A thread that runs a call may lose its turn between the start of the function and its note.
def test_order_of_notes(rounds: Iterable[random.Random], cluster: RayConnection) -> None:
    config = pparallel.RuntimeConfig(
        members=2,
        launcher={"backend": "thread"},
        transport=RayTransportConfig(cluster=cluster, timeout=PATIENCE),
        reducer={"backend": "local"},
    )
    for _ in rounds:
        pparallel.launch(config, order, [150])


# Ray begins calls of an actor of coroutines in any order: the end may overtake a wait, which lasts.
def test_a_wait_as_the_server_closes(
    rounds: Iterable[random.Random], cluster: RayConnection
) -> None:
    def wait() -> None:
        with suppress(ClosedError):
            server.wait("k")

    for rng in rounds:
        with pparallel.build(RayOrderedServerConfig(cluster=cluster)) as server:
            waiter = threading.Thread(target=wait, daemon=True)
            waiter.start()
            threading.Event().wait(rng.choice([0, 0.001, 0.01]) * rng.random())
        waiter.join(PATIENCE)
        assert not waiter.is_alive(), "a wait that began as the server closed did not end"
