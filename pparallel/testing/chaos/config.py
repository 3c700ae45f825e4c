"""What goes wrong, and how often."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pparallel.interfaces.transport import TransportConfig


class ChaosTransportConfig(TransportConfig, frozen=True):
    """A transport that delays, loses and repeats requests of the transport inside it.

    Each chance is between 0 and 1, and is drawn for each request in the order in which its sender
    sends: the same seed gives the same faults. A request is lost, or its reply is, or its
    connection breaks; a delay, and a second arrival, may come on top.

    Attributes:
        backend: the name of the backend.
        transport: the transport inside, which carries what is not lost; how members meet and how
            long one may be silent is for its options to say.
        seed: of the random numbers; each member has its own from it.
        drop_request: chance that a request does not arrive, so that nobody answers it.
        drop_reply: chance that a request is run and its reply does not arrive.
        fail_running: chance that a request fails with ``PeerLostError``, as if the connection had
            broken, while it is run all the same.
        duplicate: chance that a request arrives twice.
        delay: chance that a request is late.
        delay_at_most: seconds that it is late at most.
        harm: ``calls``: only calls of functions suffer, not what the runtime itself sends (for
            groups, barriers, references, ordered servers); ``everything``: that as well.
    """

    backend: Literal["chaos"] = "chaos"
    transport: TransportConfig
    seed: int = 0
    drop_request: float = Field(default=0.0, ge=0, le=1)
    drop_reply: float = Field(default=0.0, ge=0, le=1)
    fail_running: float = Field(default=0.0, ge=0, le=1)
    duplicate: float = Field(default=0.0, ge=0, le=1)
    delay: float = Field(default=0.0, ge=0, le=1)
    delay_at_most: float = Field(default=0.05, ge=0)
    harm: Literal["calls", "everything"] = "calls"


def chaotic(config: TransportConfig, **options: Any) -> ChaosTransportConfig:
    """Return the config of *config*'s transport with faults.

    Args:
        config: the transport inside; what it says of time-outs and threads holds outside too.
        options: those of :class:`ChaosTransportConfig`, and of any transport.
    """
    shared = {
        name: getattr(config, name)
        for name in config.model_fields_set & set(TransportConfig.model_fields) - {"backend"}
    }
    return ChaosTransportConfig(transport=config, **{**shared, **options})
