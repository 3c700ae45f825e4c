"""What collectives of several processes stand on: tensors sent over the transport of the job."""

from pparallel.runtime.collectives.channels import GroupId
from pparallel.runtime.collectives.connected import ConnectedCollective, decoded, encoded
from pparallel.runtime.collectives.mailbox import Mailbox
from pparallel.runtime.collectives.matching import Queues, Receive, check_fit, fill, finish

__all__ = [
    "ConnectedCollective",
    "GroupId",
    "Mailbox",
    "Queues",
    "Receive",
    "check_fit",
    "decoded",
    "encoded",
    "fill",
    "finish",
]
