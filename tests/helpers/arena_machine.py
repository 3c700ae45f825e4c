"""The arena against a model: no two live blocks overlap, contents stay, all comes back."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)
from typing_extensions import override

from pparallel.runtime.shm import Arena, Block

KB, MB = 1 << 10, 1 << 20
BUDGET = 6 * MB

sizes = st.one_of(
    st.integers(1, 200),
    st.sampled_from([16 * KB, 16 * KB + 1, 64 * KB, MB - 1, MB, MB + 1, MB + 200_000]),
    st.integers(1, 2 * MB),
)


class Held:
    """What somebody holds, and what it must contain."""

    def __init__(self, block: Block, mark: bytes) -> None:
        self.block, self.mark = block, mark
        self.view: memoryview | None = None
        self.ticket: tuple[int, int, int] | None = None


class ArenaMachine(RuleBasedStateMachine):
    held = Bundle("held")
    viewed = Bundle("viewed")
    sent = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.open(64, False)

    @initialize(smallest=st.sampled_from([64, 1 << 14]), shared=st.booleans())
    def other_kinds(self, smallest: int, shared: bool) -> None:
        self.other.close()
        self.arena.close()
        self.open(smallest, shared)

    def open(self, smallest: int, shared: bool) -> None:
        self.arena = Arena.create(budget=BUDGET, smallest=smallest, shared=shared)
        self.other = Arena.attach(self.arena.fd)
        self.live: list[Held] = []
        self.turn = 0

    def mark(self) -> bytes:
        self.turn += 1
        return self.turn.to_bytes(4, "little")

    @rule(target=held, nbytes=sizes)
    def allocate(self, nbytes: int) -> object:
        block = self.arena.allocate(nbytes)
        if block is None:
            assert self.arena.shortage
            usage = self.arena.usage()
            assert usage.leased + nbytes > BUDGET // 2, "there was room"
            return multiple()
        found = Held(block, self.mark())
        block.write(found.mark[:nbytes])
        block.write(found.mark[: min(4, nbytes)], at=max(0, nbytes - 4))
        found.mark = found.mark[: min(4, nbytes)]
        self.live.append(found)
        return found

    @rule(each=consumes(held))
    def release(self, each: Held) -> None:
        each.block.release()
        self.live.remove(each)

    @rule(target=viewed, each=consumes(held))
    def view(self, each: Held) -> Held:
        each.view = each.block.view()
        return each

    @rule(target=sent, each=consumes(held))
    def send(self, each: Held) -> Held:
        each.ticket = each.block.send()
        return each

    @rule(target=viewed, each=consumes(sent))
    def adopt(self, each: Held) -> Held:
        assert each.ticket is not None
        each.view = self.other.adopt(each.ticket)
        return each

    @rule(each=consumes(viewed))
    def let_go(self, each: Held) -> None:
        each.view = None
        self.live.remove(each)

    @rule(target=viewed, each=consumes(viewed))
    def keep_a_part(self, each: Held) -> Held:
        assert each.view is not None
        each.view = each.view[:]
        return each

    @rule()
    def trim(self) -> None:
        self.arena.trim()
        assert self.arena.usage().free < 64 * KB

    @rule()
    def reclaim_for_somebody_else(self) -> None:
        self.arena.reclaim(1)

    @invariant()
    def contents_stay(self) -> None:
        for each in self.live:
            length = each.block.nbytes
            if each.view is not None:
                found = each.view
            else:
                ledger = self.arena.ledger
                start = ledger.offsets[each.block.slot]
                found = ledger.mapping.bytes[start : start + length]
            assert len(found) == length
            if length >= 8:
                assert bytes(found[:4]) == each.mark
            assert bytes(found[max(0, length - 4) :])[: len(each.mark)] == each.mark

    @invariant()
    def live_blocks_do_not_overlap(self) -> None:
        ledger = self.arena.ledger
        spans = {(ledger.offsets[each.block.slot], each.block.nbytes) for each in self.live}
        ends = [0]
        for offset, nbytes in sorted(spans):
            assert ends[-1] <= offset
            ends.append(offset + nbytes)
        usage = self.arena.usage()
        assert usage.blocks >= len(spans)
        assert usage.leased + usage.free <= BUDGET

    @override
    def teardown(self) -> None:
        for each in self.live:
            if each.view is None and each.ticket is None:
                each.block.release()
            elif each.view is None and each.ticket is not None:
                each.view = self.other.adopt(each.ticket)
            each.view = None
        self.live.clear()
        self.arena.trim()
        assert self.arena.usage().blocks == 0
        assert self.arena.usage().free < 64 * KB
        self.other.close()
        self.arena.close()
