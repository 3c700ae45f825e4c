"""Pickle with tensors beside the stream that also sends code; the default serializer."""

from __future__ import annotations

from types import ModuleType

from pparallel.runtime.member import Member
from pparallel_serializers.by_value import names
from pparallel_serializers.by_value.pickler import CodePickler, RecursingCodePickler
from pparallel_serializers.config import DillSerializerConfig
from pparallel_serializers.outofband import OutOfBandSerializer


class DillSerializer(OutOfBandSerializer):
    """Sends also lambdas, local functions, closures and what lives in ``__main__``.

    What a receiver can import goes by name. Code that it cannot is sent by value, all in one
    stream: an object used inside a closure and outside of it is one object again. A function or
    class of ``__main__`` that the receiver's own ``__main__`` defines equally, as in the process
    it came from or a rank that runs the same script, becomes the receiver's own. Another receiver
    builds a class once: later objects of it have the same class.

    A function from ``__main__`` takes along the globals that it names, as they are now. Back in
    the process it came from it uses the live ones.
    """

    def __init__(self, config: DillSerializerConfig, *, member: Member | None = None) -> None:
        kind = RecursingCodePickler if config.recurse else CodePickler
        share = {"shared"} if config.keep_shared else set()
        super().__init__(kind, share if config.copy_tensor else {"cpu", "cuda"})
        self.config = config

    def mark_static_module(self, module: ModuleType | str) -> None:
        """Have all that *module* defines go by reference, in every serializer of this process."""
        names.mark_static_module(module)
