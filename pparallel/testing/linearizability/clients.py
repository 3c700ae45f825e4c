"""Who uses an ordered server in the runs, and the runs themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pparallel.testing.linearizability.checking import check
from pparallel.testing.linearizability.operation import Operation
from pparallel.testing.linearizability.plan import Kind, Plan


class Clients(ABC):
    """Clients of one server, which are killed and paused; for use inside ``with``.

    Attributes:
        possible: what may befall them and their server.
        depth: how many versions of a key the server keeps.
        happened: how often each kind of fault befell them.
    """

    possible: Set[Kind]
    depth: int

    def __init__(self) -> None:
        self.happened: Counter[Kind] = Counter()

    @abstractmethod
    def run(self, plan: Plan) -> list[Operation]:
        """Have clients do what *plan* says, and return all that they did.

        Raises:
            AssertionError: a client failed, or did not end.
        """

    @abstractmethod
    def close(self, *, gently: bool = True) -> None:
        """End all; if not *gently*, by force where that is possible.

        Raises:
            AssertionError: one that was to end gently failed, or did not end.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(gently=error is None)


@dataclass(slots=True)
class Tally:
    """What happened in some runs.

    Attributes:
        operations: how many there were.
        unknown: of how many nobody knows how they ended.
        faults: how many there were of each kind.
    """

    operations: int = 0
    unknown: int = 0
    faults: Counter[Kind] = field(default_factory=Counter)


def explore(clients: Clients, seeds: Iterable[int]) -> Tally:
    """Do a run for each seed, and check its history.

    Raises:
        AssertionError: a history is not linearizable, or a client failed; the seed is named.
    """
    tally = Tally(faults=clients.happened)
    for seed in seeds:
        plan = Plan.of(seed, clients.possible)
        try:
            operations = clients.run(plan)
            check(operations, clients.depth)
        except (AssertionError, RuntimeError) as error:
            faults = [each for act in plan.acts for each in act.faults]
            message = f"the run with seed {seed}: {error}\nIts plan: {faults}"
            raise AssertionError(message) from error
        tally.operations += len(operations)
        tally.unknown += sum(not each.is_known for each in operations)
    return tally
