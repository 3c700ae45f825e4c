"""What can be done with a placement: apply it, draw it."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from pparallel.errors import MissingDependencyError
from pparallel.interfaces.placer import Device, Placement

CPU = Device("cpu", 1000.0, 0.1)
GPU = Device("cuda:0", 1000.0, 1.0)


def placement(modules: Mapping[str, nn.Module] | None = None, *where: str) -> Placement:
    """A placement of ``actor`` and ``critic``, on the CPU unless told otherwise."""
    return Placement(
        models=("actor", "critic"),
        assignment=where or ("cpu", "cpu"),
        sizes_mb=(10.0, 20.0),
        devices=(GPU, CPU),
        cost=0.5,
        connections=(("actor", "critic", 100.0),),
        modules=modules or {},
    )


def models() -> dict[str, nn.Module]:
    return {"actor": nn.Linear(2, 3), "critic": nn.Linear(3, 1)}


class TestApply:
    def test_the_models_that_it_was_made_for(self) -> None:
        mine = models()
        assert placement(mine).apply() == mine

    @pytest.mark.gpu
    def test_they_are_moved(self) -> None:
        if not torch.cuda.is_available():
            pytest.skip("there is no GPU")
        mine = models()
        moved = placement(mine, "cuda:0", "cpu").apply()
        assert moved == mine
        assert next(mine["actor"].parameters()).device == torch.device("cuda:0")
        assert next(mine["critic"].parameters()).device == torch.device("cpu")

    def test_models_that_are_given(self) -> None:
        read = Placement.from_dict(placement(models()).to_dict())
        mine = models()
        assert read.apply(mine) == mine
        assert read.apply(dict(reversed(mine.items()))) == mine

    def test_models_in_a_sequence(self) -> None:
        mine = [nn.Linear(1, 1), nn.Linear(2, 2)]
        by_index = Placement(("0", "1"), ("cpu", "cpu"), (1.0, 1.0), (CPU,), 0.0)
        assert list(by_index.apply(mine).values()) == mine

    def test_nothing_to_move(self) -> None:
        with pytest.raises(ValueError, match=r"no models to move.* of actor, critic"):
            placement().apply()

    def test_others_than_it_was_made_for(self) -> None:
        with pytest.raises(ValueError, match="is of actor, critic, and actor is given"):
            placement().apply({"actor": nn.Linear(1, 1)})

    def test_a_device_that_is_not_there(self) -> None:
        mine = models()
        with pytest.raises(ValueError, match=r"needs cuda:99, which is not here; there are: .*cpu"):
            Placement(
                ("actor", "critic"),
                ("cpu", "cuda:99"),
                (1.0, 1.0),
                (CPU, Device("cuda:99", 10.0)),
                0.0,
                modules=mine,
            ).apply()

    def test_a_tensor_that_two_devices_would_share(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pparallel.machine.gpus.names", lambda: ["cuda:0"])
        mine = models()
        mine["critic"] = nn.Sequential(mine["actor"], mine["critic"])
        with pytest.raises(ValueError, match="'actor' and 'critic' share a tensor"):
            placement(mine, "cuda:0", "cpu").apply()
        assert placement(mine).apply() == mine

    def test_a_model_without_data(self) -> None:
        mine = models()
        mine["critic"].to("meta")
        with pytest.raises(ValueError, match="'critic' is on device meta"):
            placement(mine).apply()


class TestPlot:
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _fonts_are_open(cls) -> None:
        """Matplotlib opens its fonts once and keeps them: that is no leftover of a test."""
        placement().plot().savefig(io.BytesIO())

    def test_it_draws_devices_models_and_traffic(self, tmp_path: Path) -> None:
        figure = placement(None, "cuda:0", "cpu").plot()
        loads, traffic = figure.axes
        assert {each.get_text() for each in loads.texts} == {"actor", "critic"}
        assert [each.get_text() for each in loads.get_xticklabels()] == ["cuda:0", "cpu"]
        assert [each.get_text() for each in traffic.texts] == ["0", "100", "100", "0"]
        figure.savefig(tmp_path / "placement.png")
        assert (tmp_path / "placement.png").stat().st_size

    def test_it_shows_nothing(self) -> None:
        code = (
            "import sys; from pparallel import Device, Placement;"
            "Placement(('a',), ('cpu',), (1.0,), (Device('cpu', 2.0, 1.0),), 0.0).plot();"
            "sys.exit('matplotlib.pyplot' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0

    def test_without_matplotlib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(MissingDependencyError, match="pip install matplotlib"):
            placement().plot()
