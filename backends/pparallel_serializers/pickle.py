"""Standard pickle with tensors and arrays beside the stream."""

from __future__ import annotations

from pparallel.runtime.member import Member
from pparallel_serializers.config import PickleSerializerConfig
from pparallel_serializers.outofband import OutOfBandSerializer


class PickleSerializer(OutOfBandSerializer):
    """Sends objects of importable classes; functions and classes go by name."""

    def __init__(self, config: PickleSerializerConfig, *, member: Member | None = None) -> None:
        super().__init__()
        self.config = config
