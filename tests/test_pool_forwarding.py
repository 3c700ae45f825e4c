"""What a worker logs and warns of is logged and warned of in its parent."""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import uuid
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

import pparallel
from pparallel.interfaces.pool import PoolConfig
from pparallel.testing.patience import until
from pparallel_process import P2PPoolConfig, ProcessPoolConfig
from pparallel_process.telling import forwarding
from pparallel_process.telling.forwarding import LONGEST_MESSAGE, MOST_KEPT, Forwarder

PROLOGUE = """\
import logging, os, socket, sys, threading, warnings
import pparallel
from pparallel.interfaces.pool import PoolConfig
from pparallel.testing.patience import until
from pparallel_process import P2PPoolConfig, ProcessPoolConfig
from pparallel_process.telling import forwarding
channel = socket.socket(fileno=int(sys.argv[1]))
def send(message):
    channel.send(message)
    return True
forwarder = forwarding.install(bytes.fromhex(sys.argv[2]), "worker-0", send)
"""


class Kept(logging.Handler):
    """Keeps the records that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [each.getMessage() for each in self.records]


class Channel:
    """Takes messages while it is open."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.open = True

    def send(self, message: bytes) -> bool:
        if self.open:
            self.messages.append(message)
        return self.open


@contextmanager
def attached(handler: logging.Handler, name: str = "", level: int = 0) -> Iterator[logging.Logger]:
    """Give logger *name* the handler and the level."""
    target = logging.getLogger(name)
    before = target.level
    target.addHandler(handler)
    target.setLevel(level or before)
    try:
        yield target
    finally:
        target.removeHandler(handler)
        target.setLevel(before)


def messages_of(worker: str, *, stderr: str = "") -> list[bytes]:
    """Run the source of a worker in a process of its own; return what it sends."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", PROLOGUE + worker]
    command += [str(its.fileno()), forwarding.settings().hex()]
    pipe = subprocess.PIPE
    with (
        ours,
        subprocess.Popen(command, pass_fds=[its.fileno()], stderr=pipe, text=True) as process,
    ):
        its.close()
        messages = [*iter(lambda: ours.recv(1 << 20), b"")]
        assert process.communicate()[1] == stderr
    assert process.returncode == 0
    return messages


def replayed(messages: list[bytes]) -> list[str]:
    return [forwarding.replay(each, "worker-0") for each in messages]


# -- records --------------------------------------------------------------------------------------


def test_a_record_arrives_as_it_was_logged() -> None:
    kept = Kept()
    worker = """
def work():
    logging.getLogger("jobs.train").warning("%d of %s", 3, "five", extra={"step": 7})
thread = threading.Thread(target=work, name="reader")
thread.start(); thread.join()
channel.send(str(os.getpid()).encode())
"""
    *messages, pid = messages_of(worker)
    with attached(kept, "jobs"):
        lines = replayed(messages)
    (record,) = kept.records
    assert lines == ["WARNING jobs.train: 3 of five"]
    assert (record.name, record.levelname, record.getMessage()) == (
        "jobs.train",
        "WARNING",
        "3 of five",
    )
    assert (record.processName, record.process) == ("worker-0", int(pid))
    assert (record.threadName, record.funcName, record.pathname) == ("reader", "work", "<string>")
    assert record.lineno == PROLOGUE.count("\n") + 3
    assert vars(record)["step"] == 7
    now = logging.makeLogRecord({})
    assert now.created - 60 < record.created <= now.created
    began = now.created - now.relativeCreated / 1000
    assert record.created - record.relativeCreated / 1000 == pytest.approx(began, abs=0.01)


def test_an_exception_travels_as_its_text() -> None:
    channel, kept = Channel(), Kept()
    with attached(Forwarder("worker-0", channel.send), "exceptions") as source:
        source.propagate = False
        try:
            raise KeyError("lost")
        except KeyError:
            source.exception("no %s", "luck", stack_info=True)
    with attached(kept, "exceptions"):
        replayed(channel.messages)
    text = logging.Formatter().format(kept.records[0])
    assert text.startswith("no luck\nTraceback (most recent call last):")
    assert "KeyError: 'lost'" in text
    assert "Stack (most recent call last):" in text
    assert kept.records[0].exc_info is None


def test_attributes_are_plain_data_or_text() -> None:
    class Unreadable:
        @override
        def __str__(self) -> str:
            raise RuntimeError

    number = uuid.uuid4()
    extra = {
        "plain": {"a": [1, (2.5, None)], 3: b"x".decode()},
        "number": number,
        "price": Decimal("1.5"),
        "flag": True,
        "unreadable": Unreadable(),
    }
    (record,) = forwarded("hello", extra)
    assert vars(record)["plain"] == {"a": [1, (2.5, None)], 3: "x"}
    assert vars(record)["number"] == str(number)
    assert vars(record)["price"] == "1.5"
    assert vars(record)["flag"] is True
    assert vars(record)["unreadable"] == "<Unreadable: __str__ raised RuntimeError>"


def forwarded(message: str, extra: dict[str, Any]) -> list[logging.LogRecord]:
    """Log once on one side; return what is handled on the other."""
    channel, kept = Channel(), Kept()
    forwarder = Forwarder("worker-0", channel.send)
    record = logging.makeLogRecord({"msg": message, "name": "plain", "levelno": 40, **extra})
    forwarder.handle(record)
    assert all(len(each) <= LONGEST_MESSAGE for each in channel.messages)
    with attached(kept, "plain"):
        replayed(channel.messages)
    return kept.records


@pytest.mark.parametrize("letter", ["x", "\N{SNOWMAN}"])
def test_what_is_long_is_cut(letter: str) -> None:
    (record,) = forwarded("<" + letter * 100_000 + ">", {"exc_text": letter * 100_000, "few": 1})
    message = record.getMessage()
    assert message.startswith("<" + letter)
    assert message.endswith(letter + ">")
    assert "bytes left out" in message
    assert len(message) < 20_000
    assert vars(record)["few"] == 1


def test_attributes_that_are_too_much_are_left_out() -> None:
    (record,) = forwarded("hello", {"much": [str(each) * 10_000 for each in range(10)]})
    assert record.getMessage() == "hello"
    assert "much" not in vars(record)


def test_arguments_that_do_not_fit_are_told_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    channel = Channel()
    with attached(Forwarder("worker-0", channel.send), "misfits") as source:
        source.propagate = False
        source.warning("%d", "one")
        source.warning("two")
    assert "--- Logging error ---" in capsys.readouterr().err
    assert len(channel.messages) == 1


# -- settings -------------------------------------------------------------------------------------


def test_what_the_parent_does_not_want_is_not_sent() -> None:
    worker = """
logging.info("no"); logging.getLogger("wanted.part").debug("yes")
logging.getLogger("unwanted").error("no")
"""
    unwanted, quiet = logging.getLogger("unwanted"), logging.CRITICAL
    with attached(Kept(), "wanted", logging.DEBUG), attached(Kept(), "unwanted", quiet):
        messages = messages_of(worker)
    assert replayed(messages) == ["DEBUG wanted.part: yes"]
    assert unwanted.level == 0


def test_what_the_parent_has_disabled_is_not_sent() -> None:
    logging.disable(logging.ERROR)
    try:
        messages = messages_of("logging.error('no'); logging.critical('yes')")
    finally:
        logging.disable(logging.NOTSET)
    assert replayed(messages) == ["CRITICAL root: yes"]


def test_the_parents_filters_hold_when_it_arrives() -> None:
    messages = messages_of("logging.getLogger('late').warning('seen'); logging.error('seen too')")
    kept = Kept()
    with attached(kept), attached(Kept(), "late", logging.ERROR):
        lines = replayed(messages)
    assert lines == ["WARNING late: seen", "ERROR root: seen too"]
    assert kept.texts == ["seen too"]


def test_a_worker_that_adds_a_handler_has_both() -> None:
    worker = """
handler = logging.StreamHandler(sys.stderr)
logging.getLogger().addHandler(handler)
logging.warning("twice")
"""
    assert replayed(messages_of(worker, stderr="twice\n")) == ["WARNING root: twice"]


def test_a_worker_that_configures_logging_anew_has_its_own() -> None:
    worker = """
logging.basicConfig(format="%(levelname)s %(message)s", force=True)
logging.warning("alone")
"""
    assert messages_of(worker, stderr="WARNING alone\n") == []


def test_handlers_that_came_with_a_fork_are_the_parents() -> None:
    worker = """
logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
logging.getLogger("own").addHandler(logging.StreamHandler(sys.stderr))
logging.getLogger("own").propagate = False
forwarding.install(bytes.fromhex(sys.argv[2]), "worker-0", send)
logging.getLogger("own").warning("once")
"""
    assert replayed(messages_of(worker)) == ["WARNING own: once"]


def test_a_fork_of_a_worker_leaves_its_channel_alone() -> None:
    worker = """
if os.fork() == 0:
    logging.warning("from the fork"); logging.info("not this")
    os._exit(0)
os.wait()
logging.warning("from the worker")
"""
    messages = messages_of(worker, stderr="from the fork\n")
    assert replayed(messages) == ["WARNING root: from the worker"]


# -- the channel ----------------------------------------------------------------------------------


def test_what_the_channel_has_no_room_for_is_sent_later() -> None:
    channel, kept = Channel(), Kept()
    channel.open = False
    forwarder = Forwarder("worker-0", channel.send)
    for number in range(MOST_KEPT + 5):
        forwarder.handle(logging.makeLogRecord({"msg": str(number), "levelno": 30}))
    assert channel.messages == []
    channel.open = True
    forwarder.flush()
    with attached(kept):
        replayed(channel.messages)
    *kept_texts, last = kept.texts
    assert kept_texts == [str(number) for number in range(MOST_KEPT)]
    assert last.startswith("5 log records and warnings of worker-0 were dropped")
    forwarder.handle(logging.makeLogRecord({"msg": "after", "levelno": 30}))
    assert len(channel.messages) == MOST_KEPT + 2


def test_sending_may_log() -> None:
    sent: list[bytes] = []
    source = logging.getLogger("inner")
    source.propagate = False

    def send(message: bytes) -> bool:
        if len(sent) < 3:
            source.warning("while sending %d", len(sent))
        sent.append(message)
        return True

    with attached(Forwarder("worker-0", send), "inner"):
        source.warning("first")
    assert replayed(sent) == [
        "WARNING inner: first",
        *(f"WARNING inner: while sending {number}" for number in range(3)),
    ]


def test_no_lock_is_held_while_sending() -> None:
    """A thread that logs under a lock that sending needs waits for nobody."""
    lock, inside, logged = threading.Lock(), threading.Event(), threading.Event()
    source = logging.getLogger("locks")
    source.propagate = False

    def send(_: bytes) -> bool:
        inside.set()
        assert logged.wait(20)
        with lock:
            return True

    with attached(Forwarder("worker-0", send), "locks"):
        sender = threading.Thread(target=source.warning, args=("one",))
        sender.start()
        assert inside.wait(20)
        with lock:
            source.warning("two")
            logged.set()
        sender.join(20)
    assert not sender.is_alive()


def test_many_threads_lose_nothing_and_keep_their_order() -> None:
    threads, each = 4, 200
    refused: set[bytes] = set()
    sent: deque[bytes] = deque()

    def flaky(message: bytes) -> bool:
        again = message in refused
        refused.add(message)
        return again

    def send(message: bytes) -> bool:
        if taken := flaky(message):
            sent.append(message)
        return taken

    forwarder = Forwarder("worker-0", send)

    def work(thread: int) -> None:
        for number in range(each):
            fields = {"msg": f"{thread} {number}", "name": "many", "levelno": 30}
            forwarder.handle(logging.makeLogRecord(fields))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    while len(sent) < threads * each:
        forwarder.flush()
    seen: list[list[int]] = [[] for _ in range(threads)]
    with attached(kept := Kept(), "many"):
        replayed([*sent])
    for text in kept.texts:
        thread, number = text.split()
        seen[int(thread)].append(int(number))
    assert seen == [[*range(each)]] * threads


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


@pytest.mark.parametrize("module", ["nothing", "lazy", "slotted", "kind"])
def test_a_warning_of_an_odd_module_is_shown(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = f"""
class Own(RuntimeWarning): __module__ = {module!r}
warnings.warn_explicit('thin ice', Own, '{module}.py', 1, {module!r})
"""
    names: dict[str, Any] = {}
    exec(ODD_MODULES, names)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        messages = messages_of(worker)
    monkeypatch.setitem(sys.modules, module, names["odd"][module])
    with pytest.warns(RuntimeWarning, match="thin ice"):
        assert replayed(messages) == ["WARNING RuntimeWarning: thin ice (in worker-0)"]


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
