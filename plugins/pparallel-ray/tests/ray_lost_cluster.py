"""Two members whose cluster is killed: says what each call then ends with, and that all closes."""

from __future__ import annotations

import os
import threading

import psutil

from pparallel.errors import PeerLostError
from pparallel.testing.patience import until
from pparallel_ray import RayTransportConfig
from pparallel_ray.cluster import Cluster, RayConnection
from pparallel_ray.transport.transport import RayTransport
from ray_peer import opened, transport

NAMES = ("m0", "m1")


def main() -> None:
    with Cluster(RayConnection(num_cpus=1)):
        found = psutil.Process(os.getpid()).children(recursive=True)
        (daemon,) = (each for each in found if each.name() == "raylet")
        with RayTransport.meeting(RayTransportConfig(), NAMES) as met:
            own, other = (transport(name, NAMES, met) for name in NAMES)
            coming = threading.Thread(target=other.open)
            coming.start()
            with opened(own) as heard:
                coming.join()
                own.call("m1", [b"here"], 20)
                waiting = own.request("m1", [b"never"])
                daemon.kill()
                error = waiting.exception(60)
                assert isinstance(error, PeerLostError), error
                until(lambda: bool(heard.all), "it was not reported")
                print(f"lost: {error}", flush=True)  # noqa: T201 - the test reads it
                other.close()
    print("closed", flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
