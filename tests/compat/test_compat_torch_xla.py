"""``compat.torch_xla``: a function for each device, and a model that is moved by one at a time."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import compat_spawn_programs as programs
import pytest
import torch

import pparallel
import pparallel.compat.torch_multiprocessing as mp
from pparallel.compat import torch_xla
from pparallel.testing.patience import PATIENCE

_WARNS = "ignore:This process .* is multi-threaded:DeprecationWarning"  # since Python 3.12

WRAPPED = torch_xla.MpModelWrapper(torch.nn.Linear(2, 2))
SERIAL = torch_xla.MpSerialExecutor()


def test_names() -> None:
    assert torch_xla.MpModelWrapper is pparallel.MpModelWrapper
    assert torch_xla.MpSerialExecutor is pparallel.MpSerialExecutor
    found = inspect.signature(torch_xla.spawn)
    plain = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    assert str(found.replace(parameters=plain, return_annotation=found.empty)) == (
        "(fn, args=(), nprocs=None, join=True, daemon=False, start_method='spawn')"
    )


def test_one_process_is_the_caller(tmp_path: Path) -> None:
    assert torch_xla.spawn(programs.note, (tmp_path, "here"), nprocs=1) is None
    assert (tmp_path / "0").read_text() == f"here {os.getpid()}"
    with pytest.raises(LookupError, match="no such thing"):
        torch_xla.spawn(programs.refuse, (0,), nprocs=1)


def test_a_process_for_each_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    torch_xla.spawn(programs.note, (tmp_path, "here"), start_method="forkserver")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1"]


def test_it_returns_what_torch_multiprocessing_does(tmp_path: Path) -> None:
    context = torch_xla.spawn(
        programs.note, (tmp_path, "there"), nprocs=2, join=False, start_method="forkserver"
    )
    assert isinstance(context, mp.SpawnContext)
    assert context.join(PATIENCE)
    with pytest.raises(mp.ProcessRaisedException, match="no such thing"):
        torch_xla.spawn(programs.refuse, (1,), nprocs=2, start_method="forkserver")


def move_and_download(index: int, folder: Path, answers: Any) -> None:
    model = WRAPPED.to(torch.device("cpu"))

    def download() -> bool:
        made = not (folder / "data").exists()
        if made:
            (folder / "data").write_text("")
        return made

    answers.put((index, SERIAL.run(download), model.weight.sum().item(), model.weight.data_ptr()))


@pytest.mark.filterwarnings(_WARNS)
def test_a_wrapped_model_at_global_scope_is_shared_by_forks(tmp_path: Path) -> None:
    answers = mp.SimpleQueue()
    torch_xla.spawn(move_and_download, (tmp_path, answers), nprocs=2, start_method="fork")
    found = sorted(answers.get(PATIENCE) for _ in range(2))
    weight = WRAPPED.to("cpu").weight
    assert [index for index, *_ in found] == [0, 1]
    assert sorted(made for _, made, *_ in found) == [False, True]
    assert {each[2:] for each in found} == {(weight.sum().item(), weight.data_ptr())}
    answers.close()
