"""What goes wrong, and how often."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pparallel.interfaces.transport import TransportConfig


class ChaosTransportConfig(TransportConfig, frozen=True):
    """A transport that delays, loses and repeats messages of the transport inside it.

    A message holds calls, or results of calls, one or many. Each chance is between 0 and 1, and is
    drawn for each message in the order in which its sender sends: the same seed gives the same
    faults. A delay, and a second arrival, may come on top of another fault.

    Attributes:
        backend: the name of the backend.
        transport: the transport inside, which carries what is not lost; how members meet and how
            long one may be silent is for its options to say.
        seed: of the random numbers; each member has its own from it.
        drop_request: chance that a message with calls does not arrive, so that nobody answers it.
        drop_reply: chance that a message of results does not arrive.
        fail_running: chance that all calls that wait for the receiver of a message fail with
            ``PeerLostError``, as if the connection had broken, while they are run all the same;
            and that a message of results does not arrive.
        duplicate: chance that a message arrives twice.
        delay: chance that a message is late.
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
