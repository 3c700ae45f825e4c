"""The collective ``nccl``: what needs a GPU is marked so, the rest stands on gloo in disguise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from gloo_among_threads import among_threads as among_threads
from selected_tests import only
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroupGloo
from typing_extensions import override

import pparallel
import pparallel_torch.collective.gloo
from pparallel.errors import ConfigError
from pparallel.interfaces.collective import CollectiveConfig, ReduceOp
from pparallel.testing import CollectiveSuite
from pparallel_torch import GlooCollectiveConfig, NcclCollectiveConfig
from pparallel_torch.collective import gpus, sockets
from pparallel_torch.collective.nccl import NcclCollective

_gloo: Any = ProcessGroupGloo


class Disguised:
    """Looks like NCCL's process group, and is gloo's."""

    class Options:
        """What NCCL is told."""

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        given = _gloo._Options()
        given._timeout = options._timeout
        given._devices = [_gloo.create_device(hostname="127.0.0.1")]
        self._store, self._made = store, _gloo(store, rank, size, given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def abort(self) -> None:
        """End all operations."""
        sockets.shut_down(self._store.seen)

    def shutdown(self) -> None:
        """Gloo needs none."""


class NcclOnTheCpu(NcclCollective):
    """Takes tensors of the CPU."""

    device_type = "cpu"


@pytest.fixture
def disguise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", Disguised, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(pparallel_torch.collective.gloo, "GlooCollective", NcclOnTheCpu)


@only(
    "test_operations",
    "test_means_of_large_values",
    "test_barrier",
    "test_operations_overlap",
    "test_a_handle_is_not_done_before_its_operation",
    "test_groups",
    "test_a_group_that_was_destroyed",
    "test_a_lost_member",
    "test_close_wakes",
    "test_wait_with_a_timeout",
)
@pytest.mark.usefixtures("among_threads", "disguise")
class TestNcclInDisguise(CollectiveSuite):
    sizes: ClassVar[Sequence[int]] = (3,)

    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return GlooCollectiveConfig()


# -- without a GPU --------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "has_gpus", lambda: True)


def test_a_machine_without_gpus_is_found_out_when_the_config_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpus, "has_gpus", lambda: False)
    file = tmp_path / "job.yaml"
    file.write_text("members: 2\nlauncher: {backend: process}\ncollective: {backend: nccl}\n")
    with pytest.raises(ConfigError, match="no GPU; write gloo, shm or local") as caught:
        pparallel.load(file)
    assert caught.value.path == "collective.backend"
    with pytest.raises(ConfigError, match="no GPU"):
        NcclCollectiveConfig.model_validate({})


def test_how_gpus_are_found(tmp_path: Path) -> None:
    assert not gpus.has_gpus(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert not gpus.has_gpus(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert gpus.has_gpus(tmp_path)


@pytest.mark.usefixtures("pretended")
def test_torch_must_be_able_to_use_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, message in ((False, "torch can use no GPU here"), (True, "without NCCL")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        monkeypatch.delattr(c10d, "ProcessGroupNCCL", raising=False)
        collective = pparallel.build(NcclCollectiveConfig())
        with pytest.raises(ConfigError, match=message) as caught, collective:
            pass
        assert caught.value.path == "collective.backend"


@pytest.mark.usefixtures("pretended")
def test_threads_are_refused() -> None:
    config = {"members": 2, "collective": {"backend": "nccl"}}
    with pytest.raises(ConfigError, match="'nccl' works among machines or processes only"):
        pparallel.load(config)


@pytest.mark.usefixtures("pretended")
def test_a_tensor_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", Disguised, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pparallel.build(NcclCollectiveConfig()) as alone:
        message = r"nccl takes tensors of the device type 'cuda', not one on 'cpu': move the tensor"
        with pytest.raises(ValueError, match=message):
            alone.all_reduce(torch.ones(3))
        alone.barrier()
        assert alone.all_gather_object("over the CPU") == ["over the CPU"]


# -- with one -------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_one_member(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    monkeypatch.setenv("NCCL_RAS_ENABLE", "0")  # it would listen until the process ends
    with pparallel.build(NcclCollectiveConfig()) as alone:
        tensor = torch.arange(4.0, device="cuda")
        alone.all_reduce(tensor, ReduceOp.AVG)
        alone.broadcast(tensor, 0)
        gathered = torch.zeros_like(tensor)
        alone.all_gather([gathered], tensor)
        work = alone.all_reduce(tensor, ReduceOp.MAX, async_op=True)
        assert work is not None
        work.wait(20.0)
        assert work.is_completed()
        alone.barrier()
        assert gathered.tolist() == tensor.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.gpu
def test_a_member_for_each_gpu() -> None:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("there are not several GPUs here")
    config = {
        "members": count,
        "launcher": {"backend": "process"},
        "collective": {"backend": "nccl"},
        "reducer": {"backend": "local"},
    }
    assert pparallel.launch(config, _sums) == [float(sum(range(count)))] * count


def _sums(rt: pparallel.Runtime) -> float:
    torch.cuda.set_device(rt.device)
    tensor = torch.full((1000,), float(rt.rank), device=rt.device)
    rt.collective.all_reduce(tensor)
    everyone = [torch.zeros_like(tensor) for _ in range(rt.world_size)]
    rt.collective.all_to_all(everyone, [tensor] * rt.world_size)
    rt.collective.barrier()
    return tensor[0].item()
