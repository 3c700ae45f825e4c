"""The live display of a job: rows, streams, watches and the summary."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from rich.text import Text
from tallies import tally_of
from typing_extensions import override

from pparallel.cli.progress import display as displays
from pparallel.cli.progress import rows
from pparallel.cli.progress.counting import TASK_KINDS
from pparallel.cli.progress.display import Display
from pparallel.cli.progress.plain import ReportLines
from pparallel.cli.progress.prints import LONGEST, MemberStream
from pparallel.cli.progress.summary import Summary
from pparallel.cli.progress.tally import Standing, Tally, Tasks
from pparallel.cli.progress.terminal import Terminal, harmless
from pparallel.runtime.events import MemberEnded, MemberStarted, Reported, TaskQueued
from pparallel.runtime.member import Member, acting_as
from pparallel.testing.patience import until

# -- rows -----------------------------------------------------------------------------------------


def crowd(count: int, active: Mapping[int, float]) -> list[Standing]:
    state: Any = "running"
    return [
        Standing(f"m{n}", n, state, "", None, None, None, 1.0, active.get(n, 0), {}, Tasks(), {})
        for n in range(count)
    ]


def test_all_members_are_shown_where_they_fit() -> None:
    assert len(rows.chosen(crowd(5, {}), 5, 100.0)) == 5


def test_the_recently_active_are_shown() -> None:
    standings = crowd(200, {150: 99.0, 7: 99.5, 33: 60.0})
    shown = rows.chosen(standings, 4, 100.0)
    assert [each.rank for each in shown] == [7, 33, 150]


def test_those_that_are_active_all_the_time_do_not_change_places() -> None:
    first = rows.chosen(crowd(50, {n: 99.0 + n / 100 for n in range(50)}), 6, 100.0)
    then = rows.chosen(crowd(50, {n: 99.5 - n / 100 for n in range(50)}), 6, 100.0)
    assert [each.rank for each in first] == [each.rank for each in then] == [0, 1, 2, 3, 4]


def test_the_rest_is_counted_by_state() -> None:
    tally = tally_of(names=tuple(map(str, range(5))))
    tally.hear(MemberEnded("2", RuntimeError()))
    tally.hear(MemberStarted("3", 3))
    assert rows.rest(tally.standings()) == "... and 5 more: 1 failed, 1 running, 3 waiting"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 30])
def test_the_rows_never_exceed_the_terminal(width: int, height: int) -> None:
    tally = tally_of(
        *(Reported(f"member-with-a-long-name-{n}", {"text": "x" * 99, "y": 1}) for n in range(9)),
        TaskQueued("member-with-a-long-name-0", "pool", 0, 12345, "f"),
        names=(),
    )
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal._console.size = (width, height)
    drawn = terminal.rendered(rows.live(tally.standings(), terminal.height))
    terminal.draw([], drawn)
    assert stream.getvalue().count("\n") <= max(1, height - 1)
    assert all(Text.from_ansi(line).cell_len <= width for line in drawn)


def test_folded_rows_are_cleared_when_the_window_became_narrower() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal._console.size = (40, 10)
    terminal.draw([], ["x" * 40, "y" * 10])
    terminal._console.size = (20, 10)
    stream.truncate(0)
    terminal.draw(["a line"], [])
    assert "\x1b[3A\r\x1b[J" in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("tab\tkept", "tab\tkept"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),
        ("\x1b[2J\x1b[10;5Hjump", "jump"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bcreset", "reset"),
        ("bell\x07\x08", "bell"),
        ("10%\r100%\r", "100%"),
        ("end\x1b", "end"),
        ("\x9b2Jc1", "2Jc1"),
        ("ümläut — ok", "ümläut — ok"),
    ],
)
def test_only_colours_reach_the_terminal(text: str, shown: str) -> None:
    assert harmless(text) == shown


# -- streams --------------------------------------------------------------------------------------


def test_lines_know_their_member() -> None:
    said: list[tuple[str | None, str]] = []
    inner = io.StringIO()
    stream = MemberStream(inner, lambda name, text: said.append((name, text)))
    print("of nobody", file=stream.as_text())
    with acting_as(Member("a")):
        print("one", "two", end="", file=stream.as_text())
    print("between", file=stream.as_text())
    with acting_as(Member("a")):
        print(" three\nfour\n\nleft", end="", file=stream.as_text(), flush=True)
    stream.writelines(["five\n"])
    assert not stream.isatty()
    assert stream.getvalue() == inner.getvalue() == ""
    stream.finish()
    assert said == [
        (None, "of nobody"),
        (None, "between"),
        ("a", "one two three"),
        ("a", "four"),
        ("a", ""),
        (None, "five"),
        ("a", "left"),
    ]


def test_a_line_without_end_is_passed_on() -> None:
    said: list[str] = []
    stream = MemberStream(io.StringIO(), lambda _, text: said.append(text))
    for _ in range(3):
        stream.write("x" * LONGEST)
    stream.finish()
    assert "".join(said) == "x" * (3 * LONGEST)
    assert len(said) >= 2


# -- watches --------------------------------------------------------------------------------------


class Screen(io.StringIO):
    """A terminal in memory; ``broken``: it has gone."""

    broken = False

    @override
    def isatty(self) -> bool:
        return True

    @override
    def write(self, text: str) -> int:
        if self.broken:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_the_display_gives_the_streams_back(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, error = Screen(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", error)
    with Display(Tally(["a"]), screen, error) as watch:
        assert sys.stdout is not screen
        assert sys.stderr is error  # not a terminal
        sys.stdout.write("hello\n")
        watch.log.write("[a] logged\nmore\n")
    assert sys.stdout is screen
    shown = screen.getvalue()
    for line in ("[pparallel]", "hello\n", "[a]", "logged\n", "more\n"):
        assert line in shown
    watch.stop()
    watch.log.write("afterwards\n")
    assert screen.getvalue().endswith("afterwards\n")


def test_a_display_that_fails_says_so_once_and_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: object) -> None:
        raise ZeroDivisionError("rows")

    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    with Display(Tally(["a"]), screen, io.StringIO()) as watch:
        monkeypatch.setattr(displays, "live", fails)
        sys.stdout.write("queued perhaps\n")
        until(lambda: "live display has ended" in caplog.text, "a warning")
        sys.stdout.write("written at once\n")
        assert "written at once" in screen.getvalue()
        watch.hear(Reported("a", {"step": 1}))
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in warnings] == [
        "The live display has ended: ZeroDivisionError: rows"
    ]
    assert "queued perhaps" in screen.getvalue()


def test_a_terminal_that_goes_is_survived(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    with Display(Tally(["a"]), screen, io.StringIO()):
        screen.broken = True
        until(lambda: "live display has ended" in caplog.text, "a warning")
        sys.stdout.write("to nobody\n")
    assert "to nobody" not in screen.getvalue()


def test_who_writes_much_waits_for_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displays, "WAITING_LINES", 10)
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    with Display(Tally(["a"]), screen, io.StringIO()):
        for number in range(35):
            sys.stdout.write(f"line {number}\n")
    numbers = [each.split()[-1] for each in screen.getvalue().splitlines() if "line " in each]
    assert numbers == [str(each) for each in range(35)]


def test_report_lines() -> None:
    stream, tally = io.StringIO(), Tally()
    watch = ReportLines(tally, stream)
    with watch:
        watch.hear(MemberStarted("a", 0))
        watch.hear(Reported("a", {"step": 100, "loss": 0.3141592, "text": "x" * 30}))
    assert stream.getvalue() == f"[a] step=100 loss=0.3142 text={'x' * 30}\n"
    assert tally.standings()[0].steps == 100
    assert not set(watch.kinds) & set(TASK_KINDS)


def test_report_lines_survive_a_reader_that_goes(caplog: pytest.LogCaptureFixture) -> None:
    screen = Screen()
    watch = ReportLines(Tally(), screen)
    screen.broken = True
    watch.hear(Reported("a", {"step": 1}))
    watch.hear(Reported("a", {"step": 2}))
    assert [each.getMessage() for each in caplog.records] == [
        "Reports are not written any more: [Errno 5] Input/output error"
    ]


# -- summary --------------------------------------------------------------------------------------


def test_a_summary_as_text_and_as_data() -> None:
    tally = tally_of(
        MemberStarted("a", 0, time=10.0),
        Reported("a", {"step": 0}, time=10.0),
        Reported("a", {"step": 100}, time=20.0),
        MemberEnded("a", None, time=22.0),
        MemberStarted("b", 1, time=10.0),
        MemberEnded("b", ValueError("no"), time=12.0),
    )
    summary = Summary(tally)
    assert [line.split() for line in summary.text()] == [
        ["MEMBER", "STATE", "STEPS", "RATE", "SECONDS"],
        ["a", "done", "100", "10/s", "12.00"],
        ["b", "failed", "-", "-", "2.00"],
    ]
    assert summary.to_dict() == {
        "a": {"state": "done", "steps": 100, "rate": 10.0, "seconds": 12.0},
        "b": {
            "state": "failed",
            "steps": None,
            "rate": None,
            "seconds": 2.0,
            "error": "ValueError: no",
        },
    }
