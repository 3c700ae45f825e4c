"""The pickler by the seed's names."""

from __future__ import annotations

import io
import pickle
import sys
import threading
import types
from pathlib import Path
from typing import Any

import dill
import preloads
import pytest

from pparallel.compat.machin.pickle import Pickler, dumps, loads, mark_static_module
from pparallel.errors import SerializationError
from pparallel.runtime import processes
from pparallel.testing.patience import PATIENCE

SAMPLES: list[Any] = [None, 3, "text", b"bytes" * 1000, [1, {"a": (2, 3)}], print, int]


@pytest.mark.parametrize("recurse", [False, True])
@pytest.mark.parametrize("copy_tensor", [False, True])
def test_plain_things_and_code(recurse: bool, copy_tensor: bool) -> None:
    for each in SAMPLES:
        data = dumps(each, recurse, copy_tensor)
        assert type(data) is bytes
        assert loads(data) == each
    captured = [1]
    assert loads(dumps(lambda x: (x, captured), recurse))(2) == (2, [1])


def test_a_copy_is_the_receivers_own() -> None:
    import torch

    tensor = torch.arange(1000.0)
    whole = {"a": tensor, "row": tensor[500:], "small": torch.ones(2), "bits": tensor.bfloat16()}
    data = dumps(whole)
    assert type(data) is bytes
    tensor.zero_()
    for read in (loads, pickle.loads, dill.loads):
        found = read(data)
        assert torch.equal(found["a"], torch.arange(1000.0))
        assert torch.equal(found["bits"], torch.arange(1000.0).bfloat16())
        found["row"].zero_()
        assert float(found["a"].sum()) == float(torch.arange(500.0).sum())
    assert torch.equal(loads(data)["a"], torch.arange(1000.0))


def test_a_single_tensor() -> None:
    import torch

    for size in (3, 100_000):
        data = dumps(torch.ones(size))
        found = loads(data)
        assert torch.equal(found, torch.ones(size))
        found.zero_()
        assert torch.equal(loads(data), torch.ones(size))


def test_a_reference_is_the_senders() -> None:
    import torch

    tensor = torch.zeros(1000)
    found = loads(dumps(tensor, copy_tensor=False))
    found.fill_(2)
    assert float(tensor.sum()) == 2000


def test_another_process(tmp_path: Path) -> None:
    import torch

    tensors = {copies: torch.full((1000,), 7.0) for copies in (False, True)}
    data = [
        dumps((lambda x, tensor=tensor: (x, float(tensor[0])), tensor), copy_tensor=copies)
        for copies, tensor in tensors.items()
    ]
    process = processes.start(
        "compat_pool_tasks:answer",
        pickle.dumps((data, tmp_path / "answers")),
        preload=preloads.MEMBERS,
    )
    assert process.ended(PATIENCE) is not None
    process.close()
    answers = pickle.loads((tmp_path / "answers").read_bytes())
    for (copies, tensor), answer in zip(tensors.items(), answers, strict=True):
        function, found = loads(answer)
        assert (function(), float(found.sum())) == (5000, 5000)
        assert float(tensor.sum()) == (7000 if copies else 5000)


def test_a_pickler_writes_to_a_file() -> None:
    import torch

    file = io.BytesIO()
    pickler = Pickler(file, True, True)
    things = [lambda x: x + 1, torch.ones(10_000), {"a": 1}]
    for each in things:
        pickler.dump(each)
    file.seek(0)
    function, tensor, data = (pickle.load(file) for _ in things)
    assert (function(1), torch.equal(tensor, torch.ones(10_000)), data) == (2, True, {"a": 1})
    single = io.BytesIO()
    Pickler(single).dump([1, 2])
    assert loads(single.getvalue()) == [1, 2]
    with pytest.raises(TypeError, match="no method 'write'"):
        Pickler("a path")  # type: ignore[arg-type]


def test_what_others_pickled_is_read() -> None:
    for write in (pickle.dumps, dill.dumps):
        assert loads(write({"a": [1, 2]})) == {"a": [1, 2]}
    assert loads(dill.dumps(lambda x: x * 2))(4) == 8


def test_what_cannot_be_sent_or_read() -> None:
    file = io.BytesIO()
    for write in (dumps, Pickler(file).dump):
        with pytest.raises(SerializationError, match="lock"):
            write([threading.Lock()])
    assert file.getvalue() == b""
    data = dumps({"a": list(range(1000))})
    for damaged in (b"", data[:-5], b"junk"):
        with pytest.raises(SerializationError):
            loads(damaged)


def test_a_static_module_goes_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("compat_static_module")
    module.__file__ = "compat_static_module.py"
    exec("import threading\nlock = threading.Lock()\ndef held(): return lock", module.__dict__)
    function = module.held
    del module.held  # what is there under its name is not it
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(SerializationError):
        dumps(function, recurse=True)
    mark_static_module(module)
    assert module.__file__ == "compat_static_module.py"
    module.held = function  # type: ignore[attr-defined]
    assert loads(dumps(function, recurse=True)) is function
