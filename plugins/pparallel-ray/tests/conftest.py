from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

from pparallel.testing import Suite, no_leftovers
from pparallel_ray.cluster import RayConnection
from ray_clusters import Clusters, belongs_to_ray, token


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """The Ray clusters of this process of the tests, started when first used."""
    found = Clusters()
    with token():
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def running_cluster(clusters: Clusters) -> RayConnection:
    """A cluster that runs already, to which this process is connected."""
    return clusters.use("running")


@pytest.fixture
def own_cluster(clusters: Clusters) -> RayConnection:
    """A cluster that pparallel has started, to which this process is connected."""
    return clusters.use("own")


@pytest.fixture
def unconnected(clusters: Clusters) -> Iterator[str]:
    """A process that is connected to no cluster; the address of one that runs."""
    address = clusters.address()
    clusters.disconnect()
    yield address
    assert not ray.is_initialized()


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    if isinstance(request.cls, type) and issubclass(request.cls, Suite):  # it looks for itself
        yield
        return
    for name in ("running_cluster", "own_cluster", "unconnected"):
        if name in request.fixturenames:  # it is there before the test, and after
            request.getfixturevalue(name)
    with no_leftovers(keeps=belongs_to_ray):
        yield
