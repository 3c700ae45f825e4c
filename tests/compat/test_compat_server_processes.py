"""``pparallel.compat.machin.server``: members are processes, and some are killed."""

from __future__ import annotations

from pathlib import Path

from crew import crew

COUNT = 20  #: gradients that each client pushes


def test_a_primary_that_is_killed(tmp_path: Path) -> None:
    """Who pushes and pulls is told of it, and the secondary too: nobody hangs."""
    with crew(tmp_path, {"backend": "ipc"}, ("first", "ps", "s", "a")) as members:
        members.start("first", "compat_server_programs:stand_by")
        members.start("ps", "compat_server_programs:serve", tmp_path, ["s"])
        members.start("s", "compat_server_programs:reduce", tmp_path)
        members.start("a", "compat_server_programs:push_until_lost", tmp_path, COUNT)
        members.noted("pushed")
        members.kill("ps")
        taken, pushing, pulling = members.outcome("a").result
        assert taken >= COUNT
        assert "'ps'" in pushing
        assert "'ps'" in pulling
        assert "'ps'" in members.outcome("s").result


def test_every_gradient_is_reduced_once(tmp_path: Path) -> None:
    """Two clients and a secondary; the primary is served over shared memory."""
    with crew(tmp_path, {"backend": "ipc"}, ("ps", "s", "a", "b")) as members:
        members.start("ps", "compat_server_programs:serve", tmp_path, ["s"])
        members.start("s", "compat_server_programs:reduce", tmp_path)
        for name in ("a", "b"):
            members.start(name, "compat_server_programs:push_many", tmp_path, COUNT)
        for name in ("a", "b"):
            members.noted(f"done by {name}")
        members.note("done").touch()
        assert members.outcome("ps").result == (2 * COUNT, -2.0 * COUNT)
        assert members.outcome("s").result == "stopped"
        assert [members.outcome(each).result for each in ("a", "b")] == [-2.0 * COUNT] * 2
