"""From configs to running members."""

from pparallel.builder.launch import launch
from pparallel.builder.loading import build, load
from pparallel.builder.runtime import Runtime
from pparallel.builder.runtime_config import MemberConfig, RuntimeConfig

__all__ = ["MemberConfig", "Runtime", "RuntimeConfig", "build", "launch", "load"]
