"""Connections to a Redis server that are cut at any byte: nothing is done twice or missed."""

from __future__ import annotations

import random
from collections.abc import Iterable

from redis_proxy import proxy
from redis_servers import running
from test_redis_faults import Load, check, wait_and_push

import pparallel
from pparallel.testing.patience import PATIENCE, until

ENOUGH = 50  #: cuts of a round


def test_connections_that_are_cut_at_random(rounds: Iterable[random.Random]) -> None:
    with running() as redis:
        for number, rng in enumerate(rounds):
            space = f"round-{number}"
            with proxy(redis.socket, seed=rng.randrange(2**32)) as network:
                config = redis.config(space, url=network.url, timeout=PATIENCE)
                with pparallel.build(config) as server, Load(server, 4) as load:
                    until(lambda network=network: network.cuts > ENOUGH, "too little is cut")  # type: ignore[misc]
            with pparallel.build(redis.config(space)) as server:
                check(server, load)


def test_waiters_whose_connections_are_cut_at_random(rounds: Iterable[random.Random]) -> None:
    with running() as redis:
        for number, rng in enumerate(rounds):
            wait_and_push(redis, f"round-{number}", seed=rng.randrange(2**32), pushes=ENOUGH)
