"""Devices: what is found of them, and how far they are apart."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from pparallel.errors import MissingDependencyError
from pparallel.interfaces.placer import Device, PlacerConfig
from pparallel.interfaces.placer.devices import resolved
from pparallel.interfaces.placer.distances import distances
from pparallel.machine import cpus, gpus, memory

MB = 2**20


def config(**options: Any) -> PlacerConfig:
    return PlacerConfig(backend="x", **options)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs, one half busy, and a CPU that is three quarters idle."""
    monkeypatch.setattr(gpus, "names", lambda: ["cuda:0", "cuda:1"])
    monkeypatch.setattr(gpus, "free_memory", {"cuda:0": 1000 * MB, "cuda:1": 500 * MB}.__getitem__)
    monkeypatch.setattr(gpus, "idle_share", {"cuda:0": 0.5, "cuda:1": 1.0}.__getitem__)
    monkeypatch.setattr("pparallel.interfaces.placer.devices.idle_share", lambda: 0.75)
    monkeypatch.setattr(memory, "available", lambda: 3000 * MB)


@pytest.mark.usefixtures("two_gpus")
class TestFinding:
    def test_all_there_is(self) -> None:
        assert resolved(None, config(cpu_weight=0.2)) == (
            Device("cuda:0", 1000.0, 0.5),
            Device("cuda:1", 500.0, 1.0),
            Device("cpu", 3000.0, 0.2 * 0.75),
        )

    def test_names(self) -> None:
        found = resolved(["cpu", "cuda:1"], config())
        assert found == (Device("cpu", 3000.0, 0.0), Device("cuda:1", 500.0, 1.0))

    def test_torchs_devices(self) -> None:
        found = resolved([torch.device("cuda", 1), torch.device("cpu")], config())
        assert [each.name for each in found] == ["cuda:1", "cpu"]

    def test_one_alone(self) -> None:
        assert resolved("cuda:1", config()) == resolved(["cuda:1"], config())

    def test_what_is_said_is_not_asked(self) -> None:
        said = (Device("cuda:0", 7.0, 3.0), Device("cuda:9", 8.0), Device("cpu", 9.0))
        assert resolved(said, config(cpu_weight=0.2)) == (
            Device("cuda:0", 7.0, 3.0),
            Device("cuda:9", 8.0, 1.0),
            Device("cpu", 9.0, 0.2),
        )

    def test_half_of_it_said(self) -> None:
        assert resolved([Device("cuda:0", None, 3.0)], config()) == (Device("cuda:0", 1000.0, 3.0),)

    def test_not_there(self) -> None:
        message = r"cuda:2 does not exist; there are: cuda:0, cuda:1, cpu.*Device\('cuda:2', mem"
        with pytest.raises(ValueError, match=message):
            resolved(["cuda:2"], config())


def test_the_cpu_of_this_machine() -> None:
    (cpu,) = resolved(["cpu"], config(cpu_weight=1))
    assert cpu.memory_mb is not None
    assert 0 < cpu.memory_mb <= memory.total() / MB
    assert cpu.power is not None
    assert 0 <= cpu.power <= 1


def test_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> int:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(memory, "available", missing)
    (cpu,) = resolved(["cpu"], config())
    assert cpu.memory_mb
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MissingDependencyError, match="pip install psutil"):
        resolved(["cpu"], config())


def test_the_share_of_the_cpu_that_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for load, idle in [(0.0, 1.0), (2.0, 0.75), (8.0, 0.0), (30.0, 0.0)]:
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert cpus.idle_share() == idle


def test_names_that_mean_the_same() -> None:
    written = ["cpu", "cpu:0", "cuda", "cuda:0", "cuda:12", "xpu"]
    assert [gpus.canonical(each) for each in written] == [
        *("cpu", "cpu", "cuda:0", "cuda:0", "cuda:12", "xpu:0")
    ]


@pytest.mark.parametrize("name", ["", "CPU", "cuda:", "cuda:-1", "cuda:0:1", "meta", "gpu 1"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="is no device that holds models; write 'cpu' or"):
        gpus.canonical(name)


class TestDistances:
    devices = (Device("cuda:0"), Device("cuda:1"), Device("cpu"))

    def test_by_kind(self) -> None:
        assert distances(self.devices, config()) == ((0, 1, 10), (1, 0, 10), (10, 10, 0))

    def test_given(self) -> None:
        given = {"cuda": {"cuda:1": 3.0, "cpu:0": 7}, "cuda:7": {"cpu": 1}}
        found = distances(self.devices, config(distances=given))
        assert found == ((0, 3, 7), (3, 0, 10), (7, 10, 0))

    def test_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpus, "copy_seconds", lambda one, other, size: 0.0012345)
        given = {"cuda:0": {"cuda:1": 3.0}}
        found = distances(self.devices, config(measure_distances=True, distances=given))
        assert found == ((0, 3, 1.2), (3, 0, 1.2), (1.2, 1.2, 0))

    def test_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpus, "names", lambda: ["cuda:0"])
        with pytest.raises(ValueError, match=r"cuda:1 is cannot be measured.*: cpu, cuda:0"):
            distances(self.devices, config(measure_distances=True))


def test_the_load_is_asked_of_nvml_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def utilization(_: str) -> int:
        if said == "broken":
            raise NVMLError("Not Supported")
        return 30

    module = type(sys)("pynvml")
    module.NVMLError = NVMLError  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    said = "well"
    assert gpus.idle_share("cuda:0") == pytest.approx(0.7)
    said = "broken"
    assert gpus.idle_share("cuda:0") == 1
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.idle_share("cuda:0") == 1


def test_what_torch_has_cached_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100 * MB, 1000 * MB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 50 * MB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 20 * MB)
    assert gpus.free_memory("cuda:0") == 130 * MB


def test_sizes_are_placed_without_torch() -> None:
    code = (
        "import sys, pparallel; from pparallel import Device;"
        "devices = [Device('cuda:0', 100.0), Device('cuda:1', 100.0)];"
        "config = {'placer': {'backend': 'greedy'}};"
        "rt = pparallel.build(config).__enter__();"
        "placement = rt.placer.place({'a': 10, 'b': 20}, {('a', 'b'): 1.0}, devices);"
        "assert placement.explain() and placement.to_dict();"
        "rt.close();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def _only_where_there_is_one(self) -> None:
        if not torch.cuda.is_available():
            pytest.skip("there is no GPU")

    def test_what_is_there(self) -> None:
        found = resolved(None, config())
        assert [each.name for each in found] == [*gpus.names(), "cpu"]
        total = torch.cuda.get_device_properties(0).total_memory / MB
        assert found[0].memory_mb is not None
        assert 0 < found[0].memory_mb <= total
        assert found[0].power is not None
        assert 0 <= found[0].power <= 1

    def test_how_far_it_is(self) -> None:
        seconds = gpus.copy_seconds("cuda:0", "cpu", 64 * MB)
        assert 64 * MB / seconds > 100 * MB  # bytes a second
        far = distances((Device("cpu"), Device("cuda:0")), config(measure_distances=True))
        assert far[0][1] == far[1][0] > 0
