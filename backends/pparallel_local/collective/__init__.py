"""Collectives among threads: messages copied once, operations done by all members together."""

from pparallel_local.collective.local_collective import LocalCollective

__all__ = ["LocalCollective"]
