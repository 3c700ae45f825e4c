"""What a worker logs and warns of is logged and warned of in its parent."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from decimal import Decimal
from typing import Any

import pytest
from forwarding_workers import PROLOGUE, Channel, Kept, attached, messages_of, replayed
from typing_extensions import override

from pparallel.runtime.pools.forwarding import LONGEST_MESSAGE, MOST_KEPT, Forwarder

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
