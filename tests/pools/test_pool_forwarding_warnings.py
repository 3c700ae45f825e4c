"""Warnings of workers, whoever reads them, and both in a pool."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from forwarding_workers import PROLOGUE, Channel, Kept, attached, messages_of, replayed
from typing_extensions import override

import pparallel
from pparallel.interfaces.pool import PoolConfig
from pparallel.runtime.pools.forwarding import Forwarder
from pparallel.testing.patience import until
from pparallel_process import P2PPoolConfig, ProcessPoolConfig

# -- warnings -------------------------------------------------------------------------------------


def test_a_warning_is_one_here_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        messages = messages_of("warnings.warn('thin ice', DeprecationWarning)")
    with pytest.warns(DeprecationWarning, match="^thin ice") as caught:
        lines = replayed(messages)
    assert [str(each.message) for each in caught] == ["thin ice (in worker-0)"]
    assert (caught[0].filename, caught[0].lineno) == ("<string>", PROLOGUE.count("\n") + 1)
    assert lines == ["WARNING DeprecationWarning: thin ice (in worker-0)"]


def test_the_filters_of_the_parent_hold_in_a_worker() -> None:
    worker = """
warnings.warn("ignored text"); warnings.warn("kind", ImportWarning); warnings.warn("shown")
try:
    warnings.warn("kind", BytesWarning)
except BytesWarning as error:
    assert str(error) == "kind"
else:
    sys.exit("no error")
"""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filterwarnings("ignore", message="IGNORED")
        warnings.simplefilter("error", BytesWarning, append=True)
        warnings.simplefilter("ignore", ImportWarning, append=True)
        messages = messages_of(worker)
        warnings.simplefilter("ignore")
        assert replayed(messages) == ["WARNING UserWarning: shown (in worker-0)"]


def test_a_warning_that_is_an_error_here_is_logged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        messages = messages_of("warnings.warn('thin ice')")
    kept = Kept()
    with attached(kept), warnings.catch_warnings():
        warnings.simplefilter("error")
        replayed(messages)
    line = PROLOGUE.count("\n") + 1
    assert kept.texts == [f"<string>:{line}: UserWarning: thin ice (in worker-0)"]


def test_warnings_that_are_captured_are_logged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        messages = messages_of("warnings.warn('thin ice')")
        logging.captureWarnings(capture=True)
        try:
            with attached(kept := Kept(), "py.warnings"):
                replayed(messages)
        finally:
            logging.captureWarnings(capture=False)
    (text,) = kept.texts
    assert "UserWarning: thin ice (in worker-0)" in text


def test_a_warning_of_a_place_is_shown_once_where_it_would_be(tmp_path: Path) -> None:
    place = tmp_path / "shaky.py"
    place.write_text("import warnings\ndef shake():\n    warnings.warn('shaky')\n")
    worker = f"sys.path.insert(0, {str(tmp_path)!r}); import shaky; shaky.shake()"
    sys.path.insert(0, str(tmp_path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            messages = messages_of(worker)
            __import__("shaky")
            with warnings.catch_warnings(record=True) as caught:
                replayed(messages * 2)
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["shaky"]
    assert [str(each.message) for each in caught] == ["shaky (in worker-0)"]
    assert caught[0].filename == str(place)


def test_a_kind_of_warning_that_is_not_known_here_is_its_base() -> None:
    worker = "class Own(RuntimeWarning): pass\nwarnings.warn('mine', Own)"
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        messages = messages_of(worker)
    with pytest.warns(RuntimeWarning, match="mine"):
        assert replayed(messages) == ["WARNING RuntimeWarning: mine (in worker-0)"]


# -- whoever reads --------------------------------------------------------------------------------


def test_a_handler_that_raises_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(logging.Handler):
        @override
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("no disk")

    messages = messages_of("logging.warning('hello')")
    with attached(Broken()):
        assert replayed(messages) == ["WARNING root: hello"]
    assert "no disk" in capsys.readouterr().err


def test_a_display_that_raises_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("no display")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        messages = messages_of("warnings.warn('thin ice')")
        monkeypatch.setattr(warnings, "showwarning", broken)
        with attached(kept := Kept()):
            replayed(messages)
    assert kept.texts == ["a warning could not be shown: UserWarning: thin ice (in worker-0)"]
    assert "no display" in logging.Formatter().format(kept.records[0])


def test_a_filter_that_changes_a_record_harms_nobody() -> None:
    def spoil(record: logging.LogRecord) -> bool:
        record.args = ("too", "many")
        return True

    messages = messages_of("logging.getLogger('spoilt').warning('hello')")
    target = logging.getLogger("spoilt")
    target.addFilter(spoil)
    try:
        with attached(logging.NullHandler()):
            assert replayed(messages) == ["WARNING spoilt: hello"]
    finally:
        target.removeFilter(spoil)


def test_a_record_factory_that_raises_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object, **__: object) -> logging.LogRecord:
        raise OSError("no record")

    messages = messages_of("logging.warning('hello')")
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(broken)
    try:
        assert replayed(messages) == ["WARNING root: hello"]
    finally:
        logging.setLogRecordFactory(factory)
    said = capsys.readouterr().err
    assert "no record" in said
    assert "Message: 'hello'" in said


ODD_MODULES = """
import sys, types
class Lazy(types.ModuleType):
    def __getattribute__(self, name):
        raise ImportError("it cannot be loaded")
class Slotted:
    __slots__ = ()
odd = {"nothing": None, "lazy": Lazy("lazy"), "slotted": Slotted(), "kind": Slotted}
"""


def test_odd_modules_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = "sys.modules.update(odd); warnings.warn('thin ice')"
    names: dict[str, Any] = {}
    exec(ODD_MODULES, names)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        messages = messages_of(ODD_MODULES + worker)
        for name, module in names["odd"].items():
            monkeypatch.setitem(sys.modules, name, module)
        with pytest.warns(UserWarning, match="thin ice"):
            assert replayed(messages) == ["WARNING UserWarning: thin ice (in worker-0)"]


def test_a_warning_of_an_odd_module_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    exec(ODD_MODULES, names)
    worker = "".join(
        f"""
class Own(RuntimeWarning): __module__ = {module!r}
warnings.warn_explicit('thin ice', Own, '{module}.py', 1, {module!r})
"""
        for module in names["odd"]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        messages = messages_of(worker)
    assert len(messages) == len(names["odd"])
    for name, module in names["odd"].items():
        monkeypatch.setitem(sys.modules, name, module)
    for each in messages:
        with pytest.warns(RuntimeWarning, match="thin ice"):
            assert replayed([each]) == ["WARNING RuntimeWarning: thin ice (in worker-0)"]


def test_a_line_of_a_message_of_many() -> None:
    channel = Channel()
    forwarder = Forwarder("worker-0", channel.send)
    for text in ("\nfirst\nsecond", ""):
        forwarder.handle(logging.makeLogRecord({"msg": text, "name": "x", "levelname": "INFO"}))
    assert replayed(channel.messages) == ["INFO x: first", "INFO x: "]
    assert os.getpid() == vars(logging.makeLogRecord({}))["process"]


# -- in a pool ------------------------------------------------------------------------------------


def noisy(number: int) -> int:
    logging.getLogger("noisy").info("task %d", number)
    warnings.warn(f"warned {number}", RuntimeWarning, stacklevel=1)
    return number


@pytest.mark.parametrize("config", [ProcessPoolConfig(size=1), P2PPoolConfig(size=2)])
def test_a_pool_hands_on_what_its_workers_log(config: PoolConfig) -> None:
    with attached(kept := Kept(), "noisy", logging.INFO), warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        with pparallel.build(config) as pool:
            assert pool.map(noisy, range(4)) == [0, 1, 2, 3]
            until(lambda: len(kept.records) == 4 and len(w) == 4, "all is handed on")
    assert sorted(kept.texts) == [f"task {number}" for number in range(4)]
    names = {f"pool-worker-{number}" for number in range(config.workers)}
    assert {each.processName for each in kept.records} <= names
    texts = {str(each.message) for each in w}
    assert all(re.fullmatch(r"warned \d \(in pool-worker-\d\)", text) for text in texts)


def test_what_a_pool_logs_last_is_not_lost() -> None:
    with attached(kept := Kept(), "noisy", logging.INFO), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pparallel.build(ProcessPoolConfig(size=2)) as pool:
            for number in range(200):
                pool.submit(noisy, number)
    assert len(kept.records) == 200


def say_goodbye() -> None:
    atexit.register(logging.getLogger("noisy").info, "good bye")


def test_what_a_worker_logs_as_it_ends_is_not_lost() -> None:
    with attached(kept := Kept(), "noisy", logging.INFO):
        with pparallel.build(ProcessPoolConfig(size=1, initializer=say_goodbye)) as pool:
            assert pool.apply(abs, (-4,)) == 4
        assert kept.texts == ["good bye"]


def start_up(level: int) -> None:
    """Configure logging as many programs do in each worker."""
    logging.getLogger("noisy").setLevel(level)
    logging.getLogger("noisy").addHandler(logging.NullHandler())


def test_an_initializer_may_configure_logging() -> None:
    config = ProcessPoolConfig(size=1, initializer=start_up, initargs=(logging.ERROR,))
    with attached(kept := Kept(), "noisy", logging.DEBUG), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pparallel.build(config) as pool:
            pool.map(noisy, range(3))
        assert kept.texts == []
        with pparallel.build(config.model_copy(update={"initargs": (logging.INFO,)})) as pool:
            pool.map(noisy, range(3))
    assert kept.texts == ["task 0", "task 1", "task 2"]
