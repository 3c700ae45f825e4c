"""Rounds: one operation, with one fault, and what comes of it; run in a process of their own.

:func:`main` runs the rounds of one scenario that its
journal does not name yet, and notes each in the journal before and after. It ends early, and is
started again by :mod:`pparallel.testing.anomalies.running`, once a member was lost: after that a
new job is needed.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from typing_extensions import override

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, PparallelError
from pparallel.testing.anomalies import faults, operations
from pparallel.testing.anomalies.operations import (
    BOUND,
    LIVENESS,
    Perform,
    Scenario,
    WrongResultError,
)

if TYPE_CHECKING:
    from pparallel.builder import Runtime

LIMIT = "limit"  #: the kind that lowers the system's limit on descriptors, in place of a patch
MOST = 60  #: calls of one kind in one operation that are failed at most
SPARE = 60  #: descriptors that the limit leaves at most
LOSSES = 3  #: allowed losses likewise: each costs a new job
ANEW = 8  #: descriptors of what is made anew when it is next needed, where any faults follow others
NOTICED = 0.05  #: seconds by which a connection that is broken may be seen to be after an operation
BAD = 2  #: failed rounds of an operation and a kind after which the rest of them are left out

#: outcomes that are as they should be, and those that are not
GOOD = ("raised", "recovered", "lost")
UNREACHED = "unreached"


class Fault(NamedTuple):
    """One fault in one operation.

    Attributes:
        operation: its name.
        kind: of the calls that fail, or ``limit``.
        side: ``this`` process or its ``peer``.
        errno: the error.
        number: which call fails; for ``limit``, how many descriptors are left.
    """

    operation: str
    kind: str
    side: str
    errno: int
    number: int

    @override
    def __str__(self) -> str:
        """Return what a report says."""
        name = errno.errorcode.get(self.errno, "")
        return f"{self.operation}: {self.kind} {name} at call {self.number}, in {self.side}"


#: what follows all rounds of a job: nothing that has been begun is left, and a stop is reported
LEFT = Fault("what is left", "future", "peer", 0, 1)
STOPPED = Fault("a stopped peer", "signal", "peer", 0, 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a round.

    Attributes:
        fault: what was injected.
        outcome: ``raised`` (and the next operation worked), ``recovered`` (it succeeded in spite
            of the fault), ``lost`` (the member is reported lost, as the fault allows),
            ``unreached``; or, not as it should be: ``member lost``, ``timed out``, ``odd error``,
            ``wrong result``, ``broken``, ``left behind``, ``stuck``, and ``not reported``: after
            all rounds, a member that was stopped was not found to be lost in time.
        error: what the operation raised, and the next one.
        where: the stack of the call that failed.
        seconds: how long the round took.
    """

    fault: Fault
    outcome: str
    error: str = ""
    where: str = ""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether it is as it should be."""
        return self.outcome in (*GOOD, UNREACHED)


@dataclass(frozen=True, slots=True)
class Order:
    """What a process of rounds is told.

    Attributes:
        scenario: whose operations.
        folder: where journal, stacks and the switch are.
        share: one in how many rounds is run.
        kinds: those to try; empty: all.
        plan: the faults to try, in place of all.
        bound: seconds after which an operation is stuck.
    """

    scenario: Scenario
    folder: str
    share: int = 1
    kinds: tuple[str, ...] = ()
    plan: tuple[Fault, ...] | None = None
    bound: float = BOUND

    def to_json(self) -> str:
        """Return what :func:`order_of` takes."""
        return json.dumps(asdict(self))


def order_of(text: str) -> Order:
    """Return the order that :meth:`Order.to_json` has written."""
    raw = json.loads(text)
    plan = raw["plan"] and tuple(Fault(*each) for each in raw["plan"])
    scenario = operations.scenario_of(raw["scenario"])
    return Order(**{**raw, "scenario": scenario, "kinds": tuple(raw["kinds"]), "plan": plan})


class Journal:
    """The file in which rounds are noted: one JSON value a line, whatever process is killed."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder, "journal")
        self.path.touch()

    def write(self, **values: Any) -> None:
        """Append a line."""
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def read(self) -> list[Outcome]:
        """Return the rounds so far; one that has begun and not ended is ``stuck``."""
        found: list[Outcome] = []
        begun: Fault | None = None
        for line in self.path.read_text().splitlines():
            raw = json.loads(line)
            if "begins" in raw:
                begun = Fault(*raw["begins"])
            elif "fault" in raw:
                found.append(Outcome(**{**raw, "fault": Fault(*raw["fault"])}))
                begun = None
        return found if begun is None else [*found, Outcome(begun, "stuck")]

    @property
    def is_complete(self) -> bool:
        """Whether all rounds were run."""
        return '{"complete": true}' in self.path.read_text()


def remaining(order: Order, done: list[Outcome]) -> Iterator[Fault]:
    """Yield the faults that are still to try; what came of each must be in *done* before the next.

    Of each operation, kind, error and side the numbers rise until the fault is not reached, or
    until members were lost several times; where only a share is run, once.
    """
    if order.plan is not None:
        known = {each.fault for each in done}
        yield from (each for each in order.plan if each not in known)
        return
    for name in order.scenario.operations:
        for kind, side, error in _combinations(order, name):
            # which of several rounds are run: others in each combination
            first = 1 + crc32(f"{name} {kind} {side} {error}".encode()) % order.share
            yield from _rising(Fault(name, kind, side, error, first), order.share, done)


def _combinations(order: Order, name: str) -> Iterator[tuple[str, str, int]]:
    for kind, errors in {**faults.KINDS, LIMIT: (errno.EMFILE,)}.items():
        if not order.kinds or kind in order.kinds:
            for side in order.scenario.sides:
                if kind == LIMIT and side == "peer" and order.scenario.place != "job":
                    continue  # the processes come and go
                yield from ((kind, side, each) for each in errors)


def _rising(first: Fault, stride: int, done: list[Outcome]) -> Iterator[Fault]:
    most = SPARE if first.kind == LIMIT else MOST
    number = 0 if first.kind == LIMIT else first.number
    while number <= most:
        fault = first._replace(number=number)
        like = [each for each in done if each.fault[:4] == fault[:4]]
        if any(each.outcome == UNREACHED for each in like):
            return
        if sum(not each.is_good for each in like) >= BAD:
            return
        if sum(each.outcome == "lost" for each in like) >= (1 if stride > 1 else LOSSES):
            return
        if all(each.fault != fault for each in like):
            yield fault
        number += stride


# -- one round --------------------------------------------------------------------------------


class Rounds:
    """Runs rounds in the process that performs the operations.

    Args:
        order: what to run.
        pid: the process of the peer; negative: any but this one.
    """

    def __init__(self, order: Order, pid: int) -> None:
        self._order, self._pid = order, pid
        self._switch = faults.install()
        self._journal = Journal(order.folder)
        self._stacks = Path(order.folder, "stacks").open("a")  # noqa: SIM115 - faulthandler's
        self._open: dict[int, int] = {}  # descriptors, by process, once an operation is warm

    def run(
        self,
        performs: Callable[[str], Perform],
        last: Mapping[Fault, Callable[[], Outcome]] | None = None,
    ) -> None:
        """Run what the journal does not name, until all is done or the member was lost.

        Args:
            performs: returns an operation by its name.
            last: the rounds that end a scenario, in order.
        """
        done = self._journal.read()
        warm: dict[str, Perform] = {}
        for fault in remaining(self._order, done):
            name = fault.operation
            if name not in warm:
                warm[name] = performs(name)
                self._bounded(name, warm[name], 3)
                for each in warm:  # faults may have broken what those before had opened and kept
                    self._bounded(each, warm[each], 3)
                self._open = {pid: _descriptors(pid) for pid in self._processes()}
            self._journal.write(begins=fault)
            outcome = self._round(fault, warm[name])
            self._journal.write(**asdict(outcome))
            done.append(outcome)
            if outcome.outcome in ("lost", "member lost", "broken"):
                if self._pid > 0 and self._pid != os.getpid():
                    with suppress(ProcessLookupError):
                        os.kill(self._pid, signal.SIGKILL)  # the job is of no more use
                return
        for fault, end in (last or {}).items():
            if all(each.fault != fault for each in done):
                self._journal.write(begins=fault)
                self._journal.write(**asdict(end()))
        self._journal.write(complete=True)

    def _round(self, fault: Fault, perform: Perform) -> Outcome:
        began = time.monotonic()
        whole = self._order.scenario.place == "whole"
        try:
            patience = min(LIVENESS, self._order.bound)
            with _leaving_nothing(patience) if whole else nullcontext():
                error, was_reached, where = self._with_fault(fault, perform)
        except AssertionError as found:
            _, where = self._switch.disarm()
            return Outcome(fault, "left behind", str(found), where)
        took = time.monotonic() - began
        if not was_reached:
            if error is None:
                return Outcome(fault, UNREACHED, seconds=took)
            where = "not reached"
        later = self._bounded(fault.operation, perform)
        if later is None and fault.errno in faults.BROKEN:
            time.sleep(NOTICED)
            later = self._bounded(fault.operation, perform)
        outcome = self._judge(fault, error, later)
        if outcome in ("raised", "recovered") and (left := self._left_open(patience)):
            return Outcome(fault, "left behind", left, where, round(time.monotonic() - began, 3))
        told = "; then: ".join(map(_described, filter(None, (error, later))))
        return Outcome(fault, outcome, told, where, round(time.monotonic() - began, 3))

    def _processes(self) -> set[int]:
        return {os.getpid(), self._pid} if self._pid > 0 else {os.getpid()}

    def _left_open(self, patience: float) -> str:
        """Return which process keeps more descriptors than before all faults, if one does."""
        deadline = time.monotonic() + patience
        anew = 0 if self._order.plan is None else ANEW
        while True:
            found = {pid: _descriptors(pid) - anew for pid in self._processes()}
            more = [pid for pid, count in found.items() if count > self._open.get(pid, count)]
            if not more:
                return ""
            if time.monotonic() > deadline:
                side = "this" if os.getpid() in more else "the peer"
                return f"descriptors in {side}: {self._open} before, {found} and {anew} more now"
            time.sleep(0.05)

    def _with_fault(self, fault: Fault, perform: Perform) -> tuple[BaseException | None, bool, str]:
        me = os.getpid()
        if fault.kind == LIMIT:
            pid = me if fault.side == "this" else self._pid
            with faults.few_descriptors(pid, fault.number):
                error = self._bounded(str(fault), perform)
            return error, error is not None or fault.number < 3, ""
        pid = me if fault.side == "this" else self._pid
        self._switch.arm(fault.kind, fault.number, fault.errno, pid)
        error = self._bounded(str(fault), perform)
        return error, *self._switch.disarm()

    def _judge(self, fault: Fault, error: BaseException | None, later: BaseException | None) -> str:
        """Return the outcome of an operation that raised *error*, and of the next, *later*."""
        for each in (error, later):
            if isinstance(each, WrongResultError):
                return "wrong result"
        if later is None:
            if error is None:
                return "recovered"
            if isinstance(error, CallTimeoutError):
                # A limit lasts: a member that is not let in for it learns that it is late.
                lasts = fault.kind == LIMIT and self._order.scenario.place == "whole"
                return "raised" if lasts else "timed out"
            return "raised" if _is_expected(error) else "odd error"
        if isinstance(later, PeerLostError | ClosedError):
            allowed = fault.errno in faults.BROKEN or self._order.scenario.lossy
            return "lost" if allowed else "member lost"
        return "lost" if self._order.scenario.lossy and _is_expected(later) else "broken"

    def _bounded(self, what: str, perform: Perform, times: int = 1) -> BaseException | None:
        """Perform, and return what it raises; end this process if it takes too long."""
        bound = times * self._order.bound
        self._stacks.write(f"{what}\n")
        self._stacks.flush()
        tell = threading.Timer(0.8 * bound, self._tell_peer)
        tell.daemon = True
        tell.start()
        faulthandler.dump_traceback_later(bound, exit=True, file=self._stacks)
        try:
            perform()
        except Exception as error:  # noqa: BLE001 - judged by the caller
            return error
        finally:
            faulthandler.cancel_dump_traceback_later()
            tell.cancel()
            tell.join()
        return None

    def _tell_peer(self) -> None:
        """Let the peer write its stacks, as this process will its own."""
        if self._pid > 0 and self._pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGUSR2)


def _descriptors(pid: int) -> int:
    """Return how many descriptors a process has, less the one that it takes to look here."""
    return len(os.listdir(f"/proc/{pid}/fd")) - (pid == os.getpid())


def _is_expected(error: BaseException) -> bool:
    return isinstance(error, PparallelError | OSError | MemoryError)


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{each.filename}:{each.lineno} {each.name}" for each in reversed(frames))
    return f"{type(error).__name__}: {error}"[:600] + f" ({where})"


def _leaving_nothing(patience: float = LIVENESS) -> Any:
    from pparallel.testing.leftovers import no_leftovers

    return no_leftovers(patience)


# -- scenarios --------------------------------------------------------------------------------


def main(text: str) -> None:
    """Run the rounds of one order."""
    order = order_of(text)
    os.environ[faults.VARIABLE] = str(Path(order.folder, "switch"))
    faults.install()
    run = {"job": _run_job, "alone": _run_alone, "whole": _run_whole}[order.scenario.place]
    with _leaving_nothing():
        run(order)


def _sections(order: Order) -> dict[str, Any]:
    text = json.dumps(order.scenario.sections).replace("FOLDER", order.folder)
    found: dict[str, Any] = json.loads(text)
    return found


def _run_whole(order: Order) -> None:
    sections = _sections(order)
    Rounds(order, -os.getpid()).run(lambda name: operations.named(name, "whole")(sections))


def _run_alone(order: Order) -> None:
    import pparallel

    with pparallel.build(_sections(order)) as rt:
        Rounds(order, -os.getpid()).run(lambda name: operations.named(name, "alone")(rt))


def _run_job(order: Order) -> None:
    import pparallel

    raw = {**_sections(order), "members": 2, "close_timeout": LIVENESS}
    with suppress(PparallelError):  # the journal says what became of the members
        pparallel.launch(raw, _member, [order.to_json()])


def _member(rt: Runtime, text: str) -> None:
    """Perform the operations in rank 0; take part in them in rank 1."""
    order = order_of(text)
    performs = {each: operations.named(each, "job") for each in order.scenario.operations}
    if rt.rank == 1:
        with Path(order.folder, "peer_stacks").open("a") as stacks:
            faulthandler.register(signal.SIGUSR2, stacks)
            for each in performs.values():
                each(rt)
            rt.group().barrier(BOUND)
            _wait_for_the_end(rt)
            faulthandler.unregister(signal.SIGUSR2)
        return
    prepared = {name: each(rt) for name, each in performs.items()}
    rt.group().barrier(BOUND)
    pid = rt.group().rpc_sync(1, os.getpid)
    bound = min(BOUND, 2 * order.bound)
    last: dict[Fault, Callable[[], Outcome]] = {
        LEFT: partial(_find_left, rt, _unfinished(rt), bound)
    }
    if order.plan is None and pid != os.getpid() and "rpc_sync" in prepared:
        last[STOPPED] = partial(_stop_peer, rt, pid)
    rounds = Rounds(order, pid)
    rounds.run(prepared.__getitem__, last)
    with suppress(PeerLostError):
        rt.group().rpc_sync(1, _end)


def _unfinished(rt: Runtime) -> list[int]:
    """Return how many futures of this member, and of the peer, have not ended."""
    group = rt.group()
    group.rpc_sync(1, _ask_for_count)
    deadline = time.monotonic() + BOUND
    while (count := group.rpc_sync(1, _count)) is None:
        if time.monotonic() > deadline:
            raise WrongResultError("the main thread of the peer does not answer")
        time.sleep(0.1)
    return [_count_unfinished(), count]


def _ask_for_count() -> None:
    _counts.pop("peer", None)
    _count_is_wanted.set()


def _count() -> int | None:
    return _counts.get("peer")


def _count_unfinished() -> int:
    gc.collect()
    found = [each for each in gc.get_objects() if isinstance(each, Future)]
    return sum(not each.done() for each in found)


def _find_left(rt: Runtime, before: list[int], bound: float) -> Outcome:
    """Have every future of all the rounds end: the last of them when its time is over."""
    deadline = time.monotonic() + bound
    while True:
        now = _unfinished(rt)
        if all(left <= first for left, first in zip(now, before, strict=True)):
            return Outcome(LEFT, "recovered")
        if time.monotonic() > deadline:
            told = f"futures of this member and the peer: {before} before all, {now} now"
            return Outcome(LEFT, "left behind", told)
        time.sleep(0.1)


def _stop_peer(rt: Runtime, pid: int) -> Outcome:
    """Stop the peer, after all the faults: that must be reported within the liveness bound."""
    os.kill(pid, signal.SIGSTOP)
    while " T " not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.001)  # its threads stop one after another
    began = time.monotonic()
    try:
        error = rt.group().rpc_async(1, os.getpid, timeout=BOUND).exception(2 * BOUND)
    finally:
        os.kill(pid, signal.SIGKILL)
    took = time.monotonic() - began
    is_reported = isinstance(error, PeerLostError) and took < 2 * LIVENESS
    return Outcome(
        STOPPED, "lost" if is_reported else "not reported", f"{error!r} after {took:.1f} s"
    )


_ended = threading.Event()
_count_is_wanted = threading.Event()
_counts: dict[str, int] = {}


def _end() -> None:
    _ended.set()


def _wait_for_the_end(rt: Runtime) -> None:
    while not (_ended.wait(0.1) or rt.stopping):
        if _count_is_wanted.is_set():  # counted here: a call that counts has a future of its own
            _count_is_wanted.clear()
            time.sleep(0.1)  # until the call that asked has ended
            _counts["peer"] = _count_unfinished()
    _ended.clear()
