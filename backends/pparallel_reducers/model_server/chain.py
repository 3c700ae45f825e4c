"""An ordered chain of the versions of a model, to which all members push."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.runtime.member import Member
from pparallel_reducers.frozen import SMALL, FrozenParameters, pull_subset
from pparallel_reducers.layout import Flats, Layout, Section, state_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_COUNTS = ""  #: in what is pushed; no tensor of a model has this name


class State(NamedTuple):
    """A version: trained parameters, buffers, and frozen ones that were written in the run.

    Attributes:
        section: where each of them lies.
        flats: their values.
    """

    section: Section
    flats: Flats

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return sum(each.nbytes for each in self.flats.values())

    def views(self) -> Iterator[tuple[str, Tensor]]:
        """Return each tensor's name and its values, in its own shape."""
        return self.section.views(self.flats)


class Chain:
    """Keys of an ordered server: what the model is like, its versions, and what is frozen in all.

    Versions are numbers; each is pushed as the successor of the one before it, or refused. With the
    parameters go the counts of the versions that each member has pushed in this run: they tell
    whether a push was stored whose reply did not come.
    """

    def __init__(self, server: OrderedServer, name: str, member: Member) -> None:
        self._server = server
        self._rank, self._size = member.rank, member.world_size
        self._counts = [0] * self._size  # in the newest version that was seen
        self._layout_key = f"reducer/{name}/layout"
        self._key = f"reducer/{name}/model"
        self._frozen = FrozenParameters(server, self._key)
        self._sections: dict[frozenset[str], Section] = {}  # by the names in it
        self._written: set[str] = set()  # of the version that was pulled last

    def forget(self) -> None:
        """Forget the run before, as one begins."""
        self._frozen.clear()
        self._sections, self._written = {}, set()

    def begin(self, layout: Layout, model: Module) -> tuple[State, int, int]:
        """Go on where the chain ends, with *model*, and publish what is frozen.

        Returns:
            What the version has, the version, and how many bytes were pushed.

        Raises:
            RuntimeError: somebody else pushes to these keys.
        """
        described = self._server.versions(self._layout_key)
        number = int(described[-1]) if described else -1
        before = self.newest() if self._server.versions(self._key) else -1
        if not self._server.push(self._layout_key, layout.plain(), number + 1, number):
            raise self._refused(self._layout_key)
        self._counts = [0] * self._size
        nbytes = self._frozen.publish(model, _frozen_in(layout, state_of(model)))
        state = self.state(layout, model)
        value = _named(state, _tensor(self._counts))
        if not self._server.push(self._key, value, before + 1, before):
            raise self._refused(self._key)
        return state, before + 1, nbytes + state.nbytes

    def check(self, layout: Layout) -> None:
        """Refuse *layout* if the chain is of another model.

        Raises:
            ValueError: the first difference is named.
        """
        found = self._server.pull(self._layout_key)
        entries: Sequence[Sequence[object]] = () if found is None else found[0]
        Layout(entries).check(layout)

    @property
    def count(self) -> int:
        """How many versions of this member were stored in this run, when it last asked."""
        return self._counts[self._rank]

    def state(self, layout: Layout, model: Module) -> State:
        """Return a copy of what a version of *model* has."""
        tensors = state_of(model)
        frozen = _frozen_in(layout, tensors)
        section = self._section(layout, self._frozen.changed_since_publish(model, frozen))
        return State(section, section.pack(tensors.__getitem__))

    def load(self, layout: Layout, state: State, model: Module) -> None:
        """Copy *state*, and what is frozen, into *model*."""
        import torch

        tensors, views = state_of(model), dict(state.views())
        self._frozen.restore(model, _frozen_in(layout, tensors), views)
        with torch.no_grad():
            for name, view in views.items():
                tensors[name].copy_(view)

    def push(self, layout: Layout, state: State, version: int, before: int) -> bool:
        """Push *state* as *version* if the newest version is *before*; return whether it was.

        Raises:
            BaseException: what the server raises. The push may have been stored all the same: then
                the next :meth:`pull` raises :attr:`count` by one.
        """
        counts = self._counts.copy()
        counts[self._rank] += 1
        try:
            value = _named(state, _tensor(counts))
            stored = self._server.push(self._key, value, version, before)
        except Exception:
            stored = self._was_stored(layout, counts[self._rank])
            if not stored:
                raise
        else:
            self._counts = counts if stored else self._counts
        return stored

    def _was_stored(self, layout: Layout, count: int) -> bool:
        """Return whether the member's push number *count* is known to be stored."""
        try:
            self.pull(layout)
        except Exception:  # noqa: BLE001 - that of the push is raised
            return False
        return self.count == count

    def newest(self) -> int:
        """Return the newest version.

        Raises:
            RuntimeError: there is none any more.
        """
        versions = self._server.versions(self._key)
        if not versions:
            raise self._gone()
        return int(versions[-1])

    def pull(self, layout: Layout) -> tuple[State, int]:
        """Return what the newest version has, and the version.

        Raises:
            RuntimeError: there are none any more.
        """
        counts, states = _tensor(self._counts), list[State]()

        def into(names: Collection[str]) -> Mapping[str, Tensor]:
            section = self._section(layout, names)
            states.append(State(section, section.empty()))
            return _named(states[-1], counts)

        known = {_COUNTS, *(each.name for each in layout.entries)}
        frozen = {each.name for each in layout.entries if each.kind == "frozen"}
        names = (known - frozen) | self._written
        found = pull_subset(self._server, self._key, names, known, into)
        if found is None:
            raise self._gone()
        self._counts = [int(each) for each in counts]
        self._written = frozen.intersection(found[0])
        return states[-1], found[1]

    def _section(self, layout: Layout, names: Collection[str]) -> Section:
        """Return where a version has its tensors in which those frozen ones are that have *names*.

        It is made once for the same ones.
        """
        entries = layout.entries
        has = frozenset(x.name for x in entries if x.kind != "frozen" or x.name in names)
        if has not in self._sections:
            self._sections[has] = Section(each for each in entries if each.name in has)
        return self._sections[has]

    def _refused(self, key: str) -> RuntimeError:
        return RuntimeError(f"the ordered server refused {key!r}: somebody else pushed to it")

    def _gone(self) -> RuntimeError:
        return RuntimeError(f"the ordered server holds no {self._key!r} any more: it was deleted")


def frozen_to_undo(layout: Layout, model: Module, base: State) -> list[Tensor]:
    """Return the frozen parameters of *model* that are small, or that version *base* has."""
    frozen, has = _frozen_in(layout, state_of(model)), dict(base.views())
    return [each for name, each in frozen.items() if name in has or each.nbytes <= SMALL]


def _frozen_in(layout: Layout, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {each.name: tensors[each.name] for each in layout.entries if each.kind == "frozen"}


def _named(state: State, counts: Tensor) -> dict[str, Tensor]:
    return {**dict(state.views()), _COUNTS: counts}


def _tensor(counts: Sequence[int]) -> Tensor:
    import torch

    return torch.tensor(counts, dtype=torch.int64)
