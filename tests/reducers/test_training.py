"""Training means the same on every reducer: each of them, by each way that gradients can go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import preloads
import pytest
from gloo_among_threads import among_threads
from training_verdicts import ALONE, TOGETHER, Verdicts
from typing_extensions import override

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import ReducerConfig
from pparallel.testing import TrainingSuite
from pparallel.testing.training import Difference, Refused, Verdict
from pparallel.testing.training.cases import every
from pparallel.testing.training.plain import Buffers
from pparallel.testing.training.verdicts import Way
from pparallel_process import ProcessLauncherConfig
from pparallel_reducers import (
    AllReduceReducerConfig,
    DilocoReducerConfig,
    GradServerReducerConfig,
    LocalReducerConfig,
    ModelServerReducerConfig,
    PowerSgdCompressionConfig,
)
from pparallel_shm import ShmCollectiveConfig
from pparallel_torch import GlooCollectiveConfig

__all__ = ["among_threads"]

# One form of each reducer has all cases, which are the cells of the table in docs/training.md:
# the classes without ``together_cases``. The other forms have those in which they could differ.

#: what two primaries, each with a part of the parameters, step
BY_ELEMENT = (
    "momentum",
    "adam_w",
    "clip_by_value",
    "step_schedule",
    "tied_weights",
    "sparse_gradients",
    "complex_parameters",
    "batch_norm",
    "infinity_refused",
    "adapter",
)
#: what other code carries when gradients lie in shared memory
STRAIGHT = (
    "adam",
    "kept_gradient",
    "accumulation",
    "tied_weights",
    "frozen",
    "unfrozen",
    "parameter_added",
    "zero_first_gradient",
    "sparse_gradients",
    "float16",
    "complex_parameters",
    "large_float16",
    "small_bfloat16",
    "channels_last",
    "batch_norm",
    "infinity_of_one_refused",
    "resumed",
)
#: one case for each kind of thing that goes over a collective
CARRIED = ("adam", "accumulation", "float16", "batch_norm", "infinity_of_one_refused", "unfrozen")

#: what compression could leave out for ever
COMPRESSED = ("adam", "zero_first_gradient", "batch_norm", "infinity_refused", "resumed")


def differing(sentence: str) -> dict[str, Verdict]:
    """Return the verdict on all cases that are not refused."""
    return {
        each.name: Difference(sentence) for each in every() if not isinstance(each.verdict, Refused)
    }


class TestLocal(TrainingSuite):
    alone_verdicts: ClassVar[Verdicts] = ALONE["local"]
    together_cases: ClassVar[Collection[str] | None] = ()

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return LocalReducerConfig()


# -- grad_server ----------------------------------------------------------------------------------


class GradServer(TrainingSuite):
    """In lock-step."""

    alone_verdicts: ClassVar[Verdicts] = ALONE["grad_server"]
    verdicts: ClassVar[Verdicts] = TOGETHER["grad_server"]
    members: ClassVar[int | Sequence[str]] = ("ps", "a", "b")
    buffers: ClassVar[Buffers] = "each step"
    options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return GradServerReducerConfig(max_staleness=0, **self.options)

    @pytest.fixture
    @override
    def build(self) -> Callable[..., Any]:
        def build(config: GradServerReducerConfig, **parts: Any) -> Any:
            names = {"primary": None, "primaries": None, "secondaries": None}
            return pparallel.build(config.model_copy(update=names), **parts)

        return build


class TestGradServer(GradServer):
    pass


class TestGradServerThatTrains(GradServer):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = (
        "adam",
        "clip_by_norm",
        "own_steps",
        "plateau_by_hand",
        "accumulation",
        "unfrozen",
        "batch_norm",
        "infinity_of_one_refused",
        "push_alone",
        "resumed",
    )
    verdicts: ClassVar[Verdicts] = TOGETHER["grad_server without a dedicated primary"]
    options: ClassVar[Mapping[str, Any]] = {"dedicated": False}


class TestGradServerWithASecondary(GradServer):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = (*CARRIED, "sparse_gradients", "resumed")
    options: ClassVar[Mapping[str, Any]] = {"secondaries": ("a",)}


class TestGradServerWithTwoPrimaries(GradServer):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = BY_ELEMENT
    members: ClassVar[int | Sequence[str]] = ("ps-0", "ps-1", "a", "b")
    options: ClassVar[Mapping[str, Any]] = {"primaries": ("ps-0", "ps-1")}


class TestGradServerCompressed(GradServer):
    """By PowerSGD of rank 1, whose factors have to find directions that come later."""

    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = COMPRESSED
    verdicts: ClassVar[Verdicts] = differing("what compression leaves out is added to later steps")
    options: ClassVar[Mapping[str, Any]] = {"compression": PowerSgdCompressionConfig(rank=1)}


class TestGradServerAmongProcesses(GradServer):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = (
        "adam",
        "batch_norm",
        "infinity_refused",
        "adapter",
    )
    transport: ClassVar[str] = "ipc"

    @pytest.fixture
    @override
    def parts(self) -> Mapping[str, Any]:
        return {"transport": {"backend": self.transport}}

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


class TestGradServerOverZmq(TestGradServerAmongProcesses):
    together_cases: ClassVar[Collection[str] | None] = ("float16", "unfrozen", "resumed")
    transport: ClassVar[str] = "zmq"


# -- all_reduce -----------------------------------------------------------------------------------


class AllReduce(TrainingSuite):
    alone_verdicts: ClassVar[Verdicts] = ALONE["all_reduce"]
    verdicts: ClassVar[Verdicts] = TOGETHER["all_reduce"]
    options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return AllReduceReducerConfig(**self.options)


class Overlap(AllReduce):
    alone_verdicts: ClassVar[Verdicts] = ALONE["overlap"]
    verdicts: ClassVar[Verdicts] = TOGETHER["overlap"]
    options: ClassVar[Mapping[str, Any]] = {"overlap": True, "bucket": 40}


class TestAllReduce(AllReduce):
    pass


class TestAllReduceOverlap(Overlap):
    pass


class TestAllReduceOverShm(AllReduce):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = STRAIGHT
    options: ClassVar[Mapping[str, Any]] = {"collective": ShmCollectiveConfig()}


class TestAllReduceOverShmOverlap(Overlap):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = CARRIED
    options: ClassVar[Mapping[str, Any]] = {**Overlap.options, "collective": ShmCollectiveConfig()}


@pytest.mark.usefixtures("among_threads")
class TestAllReduceOverGloo(AllReduce):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = CARRIED
    options: ClassVar[Mapping[str, Any]] = {"collective": GlooCollectiveConfig()}


@pytest.mark.usefixtures("among_threads")
class TestAllReduceOverGlooOverlap(Overlap):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = CARRIED
    options: ClassVar[Mapping[str, Any]] = {**Overlap.options, "collective": GlooCollectiveConfig()}


class TestAllReduceAmongProcesses(AllReduce):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = ("batch_norm", "unfrozen", "resumed")
    options: ClassVar[Mapping[str, Any]] = {"collective": ShmCollectiveConfig()}

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


# -- diloco ---------------------------------------------------------------------------------------


class TestDiloco(TrainingSuite):
    """After each step parameters become their mean."""

    alone_verdicts: ClassVar[Verdicts] = ALONE["diloco"]
    verdicts: ClassVar[Verdicts] = TOGETHER["diloco"]
    buffers: ClassVar[Buffers] = "each step"

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return DilocoReducerConfig(inner_steps=1, outer_lr=1.0, outer_momentum=0.0)


class TestDilocoSmallSteps(TrainingSuite):
    """Outer steps that are too small for the dtype of the model."""

    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = ("small_bfloat16", "bfloat16", "float16")
    verdicts: ClassVar[Verdicts] = differing("outer steps are made in float32 at least")

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return DilocoReducerConfig(inner_steps=1, outer_lr=0.3, outer_momentum=0.0)


class TestDilocoRounds(TrainingSuite):
    """Outer steps with momentum, each after two inner steps."""

    alone_cases: ClassVar[Collection[str] | None] = ()
    verdicts: ClassVar[Verdicts] = differing(
        "an outer step with momentum follows several inner steps"
    )
    together_cases: ClassVar[Collection[str] | None] = (
        "adam",
        "sparse_gradients",
        "bfloat16",
        "batch_norm",
        "infinity_taken",
        "infinity_of_one_refused",
        "push_alone",
        "resumed",
    )

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return DilocoReducerConfig(inner_steps=2)


# -- model_server ---------------------------------------------------------------------------------


class TestModelServer(TrainingSuite):
    """Members make their steps one after another."""

    alone_verdicts: ClassVar[Verdicts] = ALONE["model_server"]
    verdicts: ClassVar[Verdicts] = TOGETHER["model_server"]
    way: ClassVar[Way] = "sequence"
    buffers: ClassVar[Buffers] = "own"
    in_turns = True

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return ModelServerReducerConfig()


class TestModelServerAtOnce(TrainingSuite):
    """Members make their steps when they like."""

    alone_cases: ClassVar[Collection[str] | None] = ()
    verdicts: ClassVar[Verdicts] = differing(
        "a step is put onto the newest parameters, in any order"
    )
    together_cases: ClassVar[Collection[str] | None] = BY_ELEMENT

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return ModelServerReducerConfig()
