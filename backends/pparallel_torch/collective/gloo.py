"""The collective ``gloo``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import ProcessGroupGloo
from typing_extensions import override

from pparallel.errors import ConfigError
from pparallel_torch.collective import sockets
from pparallel_torch.collective.native import NativeGroup, Started
from pparallel_torch.collective.store import JobStore
from pparallel_torch.collective.torch_collective import TorchCollective

_gloo: Any = ProcessGroupGloo  # its options are not public

#: What gloo writes when a connection has ended, or nothing came for too long.
_SIGNS = ("gloo/transport", "onnection", "Timed out", "Broken pipe")


class GlooCollective(TorchCollective):
    """Operations on tensors of the CPU by gloo, over TCP connections of its own."""

    device_type = "cpu"
    instead = "move the tensor to the CPU, or use collective: {backend: nccl}"

    @override
    def connect(self, store: JobStore, timeout: float) -> NativeGroup:
        options = _gloo._Options()
        options._timeout = timedelta(seconds=min(timeout, self.timeout))
        options._devices = [self._device()]
        made = _gloo(store, self.position, self.size(), options)
        made.set_timeout(timedelta(seconds=self.timeout))
        return GlooGroup(made, store, self.ends, self.others, self.timeout, self.gave_up)

    def _device(self) -> Any:
        config: Any = self.config
        try:
            if config.interface_name:
                return _gloo.create_device(interface=config.interface_name)
            return _gloo.create_device(hostname=config.address or self.own_address)
        except RuntimeError as error:
            option = "interface_name" if config.interface_name else "address"
            message = f"gloo cannot listen there: {error}"
            raise ConfigError(message, path=f"{self.name}.{option}") from error


class GlooGroup(NativeGroup):
    """A process group of gloo's."""

    @override
    def abort(self) -> None:
        sockets.shut_down(self._store.seen)

    @override
    def release(self) -> None:
        """Do nothing: gloo ends when it is dropped."""

    @override
    def passes(self, started: Started, span: timedelta) -> bool:
        done = started.is_completed()
        try:
            started.wait(span)
        except RuntimeError:
            if done:  # else it was not done in time, or its failure is seen the next time
                raise
            return False
        return True

    @override
    def is_broken(self, error: Exception) -> bool:
        return isinstance(error, RuntimeError) and any(each in str(error) for each in _SIGNS)
