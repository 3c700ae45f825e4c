"""Scripts of users in threads, in one kind of worker and in one kind of member each.

The programs are dealt to start methods and transports in turn; the soak runs all of them in all
ways, and beside the originals.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import script_programs as programs

THREADS = ("thread", "local")
#: scripts that only the soak runs: the gate has tests of the same in test_child_main and
#: test_tensors_sent
ELSEWHERE = ("hogwild", "inherited_by_fork", "initializer_everywhere", "loaders_in_a_task")
#: how the script of each way starts, and whether it has a guard
STARTS = {
    "thread": ("script", True),
    "fork": ("stdin", False),
    "forkserver": ("script", False),
    "spawn": ("module", True),
    "local": ("module", False),
    "ipc": ("script", False),
    "zmq": ("stdin", False),
    "torch_rpc": ("script", True),
}


def dealt_to(way: str) -> list[str]:
    """Return the programs that run in a way: in threads, and in one way of another kind.

    One with a value of its own in a way runs there, too; torch is imported in three ways.
    """
    names = programs.programs_of(way, STARTS[way][0])
    if way == "thread":
        return names
    if way == "local":
        return [name for name in names if not programs.PROGRAMS[name].imports]
    ways = programs.WORKERS if programs.kind_of(way) == "workers" else programs.MEMBERS
    found = []
    for number, (name, program) in enumerate(programs.PROGRAMS.items()):
        is_dealt = ways[number % len(ways)] == way or way in program.ways
        if program.imports:
            is_dealt = way in {"forkserver", "torch_rpc"}
        if name in names and is_dealt:
            found.append(name)
    return found


def scripts_dealt() -> list[tuple[str, str]]:
    """Return pairs of a script and a way: one in turn, and threads where they give another result.

    Those that import torch do not run on torch's RPC, where it takes longest.
    """
    pairs = []
    for number, (name, script) in enumerate(programs.SCRIPTS.items()):
        without = THREADS if script.imports else (*THREADS, "torch_rpc")
        others = [each for each in script.ways if each not in without]
        if name not in ELSEWHERE:
            pairs += [(name, each) for each in script.otherwise if each in THREADS]
            pairs.append((name, others[number % len(others)]))
    return pairs


@pytest.mark.parametrize("way", STARTS)
def test_programs_give_what_their_originals_give(way: str, tmp_path: Path) -> None:
    names = dealt_to(way)
    how, is_guarded = STARTS[way]
    found = programs.run_programs(names, way, tmp_path, how, is_guarded)
    assert programs.failures(found, way) == {}


@pytest.mark.parametrize(("name", "way"), scripts_dealt())
def test_a_script_gives_what_its_original_gives(name: str, way: str, tmp_path: Path) -> None:
    script = programs.SCRIPTS[name]
    found = script.run(way, tmp_path)
    expected = script.otherwise.get(way, script.expected)
    assert programs.matches(found, expected), f"{found}, not {expected}"


def test_a_failed_assert_of_a_pytest_module_shows_the_text_of_pytest(tmp_path: Path) -> None:
    texts = programs.run_pytest_module(tmp_path, ["forkserver"], "importlib")
    assert texts == ["assert 3 < 2", "words\nassert 3 == 2", "assert 3 < 2"]


def test_ranks_that_run_the_script_send_it_by_name(tmp_path: Path) -> None:
    place = tmp_path / "sockets"
    place.mkdir(mode=0o700)
    assert (
        programs.run_by_hand(programs.RANKS + programs.BY_HAND, tmp_path, str(place))
        == programs.RANKS_FOUND
    )
