"""CollectiveSuite: what every collective promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import pparallel
from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.testing.collective import failures, forms, groups, lists, messages, operations
from pparallel.testing.collective.samples import DTYPES
from pparallel.testing.patience import AGES, PATIENCE
from pparallel.testing.suite import Suite, changed, requires

LEAVES_AT_ONCE = {"override": {"close_timeout": 0.05}}

Launch = Callable[..., list[Any]]


class CollectiveSuite(Suite):
    """Subclass it, and give a fixture ``config``: the collective's config.

    Members are started by the fixture ``launcher``; override it where members of this collective
    cannot be threads. Their tensors are on ``device``, and have the ``dtypes`` that it names.

    Attributes:
        sizes: how many members do the operations, in one job after another.
        too_long: the ``timeout`` of members in the tests of time-outs: seconds in which they open,
            and after which one that waits for the others in vain is to fail.
        woken_within: the ``timeout`` in the tests of members that leave: who has not been woken by
            then has been forgotten.
    """

    interface: ClassVar[str] = "collective"
    sizes: ClassVar[Sequence[int]] = (1, 2, 3, 5)
    too_long: ClassVar[float] = 1.0
    woken_within: ClassVar[float] = 5.0

    @pytest.fixture
    def device(self) -> str:
        """Where the members' tensors are; ``cuda`` for a backend that takes no others."""
        return "cpu"

    @pytest.fixture
    def dtypes(self) -> Sequence[str]:
        """The dtypes to be tested; fewer where the backend's library cannot carry all."""
        return DTYPES

    @pytest.fixture
    def launch(self, config: CollectiveConfig, launcher: LauncherConfig) -> Launch:
        """What runs a program in members that are connected by the collective."""

        def launch(
            members: int | list[Any],
            target: Callable[..., Any],
            *args: Any,
            timeout: float = PATIENCE,
        ) -> list[Any]:
            if isinstance(members, int):
                members = [f"m{rank}" for rank in range(members)]
            raw = {"members": members, "close_timeout": PATIENCE, "reducer": {"backend": "local"}}
            parts = {"launcher": launcher, "collective": changed(config, timeout=timeout)}
            return pparallel.launch(pparallel.RuntimeConfig(**raw, **parts), target, args)

        return launch

    # -- operations ---------------------------------------------------------------------------

    def test_operations(self, launch: Launch, device: str, dtypes: Sequence[str]) -> None:
        for size in self.sizes:
            assert launch(size, operations.each, device, dtypes) == [None] * size

    def test_multigpu_forms(self, launch: Launch, device: str) -> None:
        for size in (1, 3):
            assert launch(size, operations.multigpu, device) == [None] * size

    def test_strides(self, launch: Launch, device: str) -> None:
        for size in (1, 2, 3):
            assert launch(size, operations.strides, device) == [None] * size

    def test_views(self, launch: Launch, device: str) -> None:
        for size in (1, 3):
            assert launch(size, operations.views, device) == [None] * size

    def test_unusual_forms(self, launch: Launch, device: str, dtypes: Sequence[str]) -> None:
        chosen = [each for each in ("float32", "bool", "complex64") if each in dtypes]
        for size in (1, 3):
            assert launch(size, forms.unusual_forms, device, chosen) == [None] * size

    @pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
    def test_unusual_dtypes(self, launch: Launch, device: str) -> None:
        for size in (1, 3):
            assert launch(size, forms.unusual_dtypes, device) == [None] * size

    @pytest.mark.filterwarnings("ignore")
    def test_tensors_that_cannot_be_sent(self, launch: Launch, device: str) -> None:
        for size in (1, 2, 3):
            assert launch(size, forms.unsendable, device) == [None] * size

    def test_outputs_that_share_memory(self, launch: Launch, device: str) -> None:
        assert launch(3, lists.outputs_that_share_memory, device) == [None] * 3

    def test_inputs_that_share_memory(self, launch: Launch, device: str) -> None:
        assert launch(3, lists.inputs_that_share_memory, device) == [None] * 3

    def test_tensors_of_several_shapes(self, launch: Launch, device: str) -> None:
        for size in (2, 3):
            assert launch(size, lists.uneven, device) == [None] * size

    def test_means_of_large_values(
        self, launch: Launch, device: str, dtypes: Sequence[str]
    ) -> None:
        for size in {*self.sizes, 4}:
            assert launch(size, forms.means, device, dtypes) == [None] * size

    def test_large_tensors(self, launch: Launch, device: str) -> None:
        for size in (2, 3):
            assert launch(size, operations.large, device) == [None] * size

    def test_all_reduce_is_the_same_everywhere(self, launch: Launch, device: str) -> None:
        for size, numbers in ((3, 700_001), (4, 100), (5, 700_001)):
            digests = launch(size, operations.fingerprint, device, numbers)
            assert digests == [digests[0]] * size

    def test_barrier(self, launch: Launch, tmp_path: Path) -> None:
        for size in set(self.sizes) - {1}:
            folder = tmp_path / str(size)
            folder.mkdir()
            assert launch(size, operations.barriers, folder, 20) == [None] * size

    def test_what_arrives_is_its_own(self, launch: Launch, device: str) -> None:
        assert launch(3, operations.aliases, device) == [None] * 3

    def test_operations_overlap(self, launch: Launch, device: str) -> None:
        assert launch(3, operations.overlapping, device) == [None] * 3

    def test_a_handle_is_not_done_before_its_operation(self, launch: Launch, device: str) -> None:
        assert launch(2, groups.slow_root, device) == [None] * 2

    # -- messages -----------------------------------------------------------------------------

    def test_messages(self, launch: Launch, device: str, dtypes: Sequence[str]) -> None:
        for size in (2, 3):
            assert launch(size, messages.ring, device, dtypes) == [None] * size

    def test_order_of_messages(self, launch: Launch, device: str) -> None:
        assert launch(2, messages.order, device, 1500) == [None] * 2

    @requires("tags")
    def test_tags_are_not_mixed(self, launch: Launch, device: str) -> None:
        assert launch(2, messages.tags, device) == [None] * 2

    @requires(lacking=("tags",))
    def test_tags_are_refused(self, launch: Launch, device: str) -> None:
        assert launch(2, messages.no_tags, device) == [None] * 2

    @requires("any_source")
    def test_any_source(self, launch: Launch, device: str) -> None:
        for size in (2, 4):
            assert launch(size, messages.any_source, device, 50) == [None] * size

    @requires(lacking=("any_source",))
    def test_any_source_is_refused(self, launch: Launch, device: str) -> None:
        assert launch(2, messages.no_any_source, device) == [None] * 2

    def test_what_was_sent_may_be_changed(self, launch: Launch, device: str) -> None:
        assert launch(2, messages.change_after_sending, device) == [None] * 2

    def test_sending_waits_for_nobody(self, launch: Launch, device: str) -> None:
        assert launch(2, messages.both_ways, device) == [None] * 2

    @requires("tags")
    def test_many_threads(self, launch: Launch, device: str) -> None:
        assert launch(2, messages.many_threads, device, 100) == [None] * 2

    # -- groups and objects -------------------------------------------------------------------

    def test_groups(self, launch: Launch, device: str) -> None:
        assert launch(5, groups.global_ranks, device) == [None] * 5

    def test_groups_are_not_mixed(self, launch: Launch, device: str) -> None:
        assert launch(2, groups.groups_apart, device) == [None] * 2

    def test_a_group_that_was_destroyed(self, launch: Launch, device: str) -> None:
        assert launch(2, groups.destroyed, device) == [None] * 2

    def test_objects(self, launch: Launch) -> None:
        for size in (1, 3):
            assert launch(size, groups.objects) == [None] * size

    def test_an_object_that_cannot_be_sent(self, launch: Launch) -> None:
        for form in groups.FORMS:
            told = launch(3, groups.unsendable, form)
            waited = told[:1] if form == "gather" else [told[0], told[2]]
            assert "cannot be serialised" in told[1]
            assert all("rank 1" in each for each in waited), (form, told)

    # -- failures -----------------------------------------------------------------------------

    def test_what_does_not_fit(self, launch: Launch, device: str) -> None:
        assert launch(2, messages.what_does_not_fit, device) == [None] * 2

    @pytest.mark.parametrize("name", ["broadcast", "all_gather", "all_reduce"])
    def test_an_operation_that_does_not_fit(self, launch: Launch, device: str, name: str) -> None:
        with pytest.raises(ValueError, match="does not fit"):
            launch(2, messages.operation_that_does_not_fit, device, name)

    def test_wrong_arguments(self, launch: Launch, device: str) -> None:
        assert launch(2, messages.wrong_arguments, device) == [None] * 2

    def test_a_lost_member(self, launch: Launch, device: str) -> None:
        members = ["m0", "m1", {"name": "m2", **LEAVES_AT_ONCE}]
        done = launch(members, failures.lose_a_member, device, timeout=self.woken_within)
        assert done == [None] * 3

    @requires("any_source")
    def test_nobody_is_left(self, launch: Launch, device: str) -> None:
        members = ["m0", {"name": "m1", **LEAVES_AT_ONCE}, {"name": "m2", **LEAVES_AT_ONCE}]
        done = launch(members, failures.lose_all_senders, device, timeout=self.woken_within)
        assert done == [None] * 3

    def test_close_wakes(self, launch: Launch, device: str) -> None:
        done = launch(2, failures.close_while_waiting, device, timeout=self.woken_within)
        assert done == [None] * 2

    @pytest.mark.parametrize("name", failures.WAITS)
    def test_nothing_waits_after_the_end(self, launch: Launch, device: str, name: str) -> None:
        with pytest.raises(KeyError, match="the first failure"):
            launch(3, failures.fail_while_others_wait, device, name)

    def test_timeout(self, launch: Launch, device: str) -> None:
        done = launch(2, failures.time_out, device, timeout=self.too_long)
        assert done == [None] * 2

    def test_a_time_limit_may_be_long(self, launch: Launch, device: str) -> None:
        done = launch(2, failures.come_late, device, timeout=AGES)
        assert done == [None] * 2

    def test_wait_with_a_timeout(self, launch: Launch, device: str) -> None:
        assert launch(2, failures.wait_again, device) == [None] * 2

    # -- GPUs ---------------------------------------------------------------------------------

    @requires("cuda")
    @pytest.mark.gpu
    @pytest.mark.parametrize("size", [2, 3])
    def test_tensors_on_a_gpu(self, launch: Launch, dtypes: Sequence[str], size: int) -> None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("there is no GPU here")
        for program in (operations.all_reduce, operations.gather, messages.ring):
            assert launch(size, program, "cuda", dtypes) == [None] * size
        for shaped in (operations.strides, operations.large):
            assert launch(size, shaped, "cuda") == [None] * size
