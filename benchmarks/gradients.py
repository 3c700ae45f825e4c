"""Gradients of four members, averaged, stepped on, and back as parameters, in lockstep.

A round lasts from the first member's gradients to the last member's new parameters. Ours goes by
the gradient server on `ipc`, with a member of its own that steps the optimizer; bare copies are the
floor of whatever does not compress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from benchmarks.crews import Crew
from benchmarks.gradients_floor import bare_copies
from benchmarks.gradients_ours import grad_server
from benchmarks.gradients_parts import Rounds
from benchmarks.gradients_peers import coalesced, flat, gloo, torch_rpc
from benchmarks.harness import Aim, Contest, Making, Setting

OURS, TORCH = "grad_server", "parameter server on torch RPC"
COALESCED, FLAT = "gloo, coalesced", "gloo, flat buffer"
FLOOR = "bare copies"


@contextmanager
def gradients(megabytes: int, setting: Setting) -> Iterator[Contest]:
    """Have the members of each contender make rounds."""
    megabytes, recipe = setting.count(megabytes, 1), partial(Rounds, setting.count(4, 1))
    opening: dict[str, Callable[[int], AbstractContextManager[Crew]]] = {
        OURS: grad_server,
        TORCH: torch_rpc,
        COALESCED: partial(gloo, coalesced),
        FLAT: partial(gloo, flat),
        FLOOR: bare_copies,
    }
    with ExitStack() as stack:
        contenders = {
            name: stack.enter_context(opened(megabytes)).turn(recipe)
            for name, opened in opening.items()
        }
        yield Contest(
            contenders=contenders, aims=[Aim(TORCH, 3), Aim(COALESCED, 1)], pins=("two",), rounds=11
        )


CONTESTS: dict[str, Making] = {"25 MB from four members": partial(gradients, 25)}
