"""Scripts of users in threads, in one kind of worker and in one kind of member each.

The programs are dealt to start methods and transports in turn; the soak runs all of them in all
ways, and beside the originals.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from script_programs import (
    BY_HAND,
    MEMBERS,
    PROGRAMS,
    RANKS,
    RANKS_FOUND,
    SCRIPTS,
    WORKERS,
    failures,
    kind_of,
    matches,
    programs_of,
    run_by_hand,
    run_programs,
    run_pytest_module,
)

THREADS = ("thread", "local")
#: scripts that only the soak runs: the gate has tests of the same in test_child_main and
#: test_tensors_sent
ELSEWHERE = ("hogwild", "inherited_by_fork", "initializer_everywhere", "loaders_in_a_task")
#: how the script of each way starts, and whether it has a guard
STARTS = {
    "thread": ("script", True),
    "fork": ("script", False),
    "forkserver": ("stdin", False),
    "spawn": ("module", True),
    "local": ("module", False),
    "ipc": ("script", False),
    "zmq": ("stdin", False),
    "torch_rpc": ("script", True),
}


def dealt_to(way: str) -> list[str]:
    """Return the programs that run in a way: all in threads, each in one way of another kind.

    Programs of torch go where torch is imported once or anyway.
    """
    names = programs_of(way, STARTS[way][0])
    if way in THREADS:
        return names
    ways = WORKERS if kind_of(way) == "workers" else MEMBERS
    of_torch = ("fork", "forkserver") if kind_of(way) == "workers" else ("torch_rpc",)
    numbers = {name: number for number, name in enumerate(PROGRAMS)}
    dealt = {name: of_torch if "torch" in PROGRAMS[name].imports else ways for name in names}
    return [name for name in names if dealt[name][numbers[name] % len(dealt[name])] == way]


def scripts_dealt() -> list[tuple[str, str]]:
    """Return pairs of a script and a way: in threads, and one of its other ways in turn."""
    pairs = []
    for number, (name, script) in enumerate(SCRIPTS.items()):
        if name in ELSEWHERE:
            continue
        without = THREADS if script.imports else (*THREADS, "torch_rpc")
        others = [each for each in script.ways if each not in without]
        if not script.imports:
            pairs += [(name, each) for each in script.ways if each in THREADS]
        pairs.append((name, others[number % len(others)]))
    return pairs


@pytest.mark.parametrize("way", STARTS)
def test_programs_give_what_their_originals_give(way: str, tmp_path: Path) -> None:
    names = dealt_to(way)
    how, is_guarded = STARTS[way]
    found = run_programs(names, way, tmp_path, how, is_guarded)
    assert failures(found, way) == {}


@pytest.mark.parametrize(("name", "way"), scripts_dealt())
def test_a_script_gives_what_its_original_gives(name: str, way: str, tmp_path: Path) -> None:
    script = SCRIPTS[name]
    found = script.run(way, tmp_path)
    expected = script.otherwise.get(way, script.expected)
    assert matches(found, expected), f"{found}, not {expected}"


def test_a_failed_assert_of_a_pytest_module_shows_the_text_of_pytest(tmp_path: Path) -> None:
    texts = run_pytest_module(tmp_path, ["forkserver"], "importlib")
    assert texts == ["assert 3 < 2", "words\nassert 3 == 2", "assert 3 < 2"]


def test_ranks_that_run_the_script_send_it_by_name(tmp_path: Path) -> None:
    place = tmp_path / "sockets"
    place.mkdir(mode=0o700)
    assert run_by_hand(RANKS + BY_HAND, tmp_path, str(place)) == RANKS_FOUND
