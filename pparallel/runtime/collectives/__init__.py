"""What the collectives of a job stand on: groups of its members, and tensors that they send."""

from pparallel.runtime.collectives.channels import GroupId
from pparallel.runtime.collectives.connected import ConnectedCollective
from pparallel.runtime.collectives.job_collective import JobCollective
from pparallel.runtime.collectives.mailbox import Mailbox
from pparallel.runtime.collectives.matching import Queues, Receive, check_fit, fill, finish

__all__ = [
    "ConnectedCollective",
    "GroupId",
    "JobCollective",
    "Mailbox",
    "Queues",
    "Receive",
    "check_fit",
    "fill",
    "finish",
]
