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

#: what a step of each element by itself comes to: what two primaries, each with a part, can do
BY_ELEMENT = (
    "sgd",
    "momentum",
    "adam",
    "adam_w",
    "clip_by_value",
    "accumulation",
    "step_schedule",
    "tied_weights",
    "frozen",
    "sparse_gradients",
    "float16",
    "float64",
    "complex_parameters",
    "batch_norm",
    "infinite_mask",
    "infinity_refused",
)
#: among processes: one case for each kind of thing that travels
TRAVELLING = ("adam", "float16", "batch_norm", "infinity_refused", "unfrozen", "resumed")

#: what compression could leave out for ever
COMPRESSED = ("adam", "zero_first_gradient", "batch_norm", "infinity_refused", "resumed")


def differing(sentence: str) -> dict[str, Verdict]:
    """Return the verdict on all cases that are not refused."""
    return {
        each.name: Difference(sentence) for each in every() if not isinstance(each.verdict, Refused)
    }


class TestLocal(TrainingSuite):
    alone_verdicts: ClassVar[Verdicts] = ALONE["local"]

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


@pytest.mark.costly
class TestGradServer(GradServer):
    pass


@pytest.mark.costly
class TestGradServerThatTrains(GradServer):
    alone_cases: ClassVar[Collection[str] | None] = ()
    verdicts: ClassVar[Verdicts] = TOGETHER["grad_server without a dedicated primary"]
    options: ClassVar[Mapping[str, Any]] = {"dedicated": False}


@pytest.mark.costly
class TestGradServerWithASecondary(GradServer):
    alone_cases: ClassVar[Collection[str] | None] = ()
    options: ClassVar[Mapping[str, Any]] = {"secondaries": ("a",)}


@pytest.mark.costly
class TestGradServerWithTwoPrimaries(GradServer):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = BY_ELEMENT
    members: ClassVar[int | Sequence[str]] = ("ps-0", "ps-1", "a", "b")
    options: ClassVar[Mapping[str, Any]] = {"primaries": ("ps-0", "ps-1")}


@pytest.mark.costly
class TestGradServerCompressed(GradServer):
    """By PowerSGD of rank 1, whose factors have to find directions that come later."""

    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = COMPRESSED
    verdicts: ClassVar[Verdicts] = differing("what compression leaves out is added to later steps")
    options: ClassVar[Mapping[str, Any]] = {"compression": PowerSgdCompressionConfig(rank=1)}


@pytest.mark.costly
class TestGradServerAmongProcesses(GradServer):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = TRAVELLING

    @pytest.fixture(params=["ipc", "zmq"])
    def transport(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    @override
    def parts(self, transport: str) -> Mapping[str, Any]:
        return {"transport": {"backend": transport}}

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


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


@pytest.mark.costly
class TestAllReduce(AllReduce):
    pass


@pytest.mark.costly
class TestAllReduceOverlap(Overlap):
    pass


@pytest.mark.costly
class TestAllReduceOverShm(AllReduce):
    alone_cases: ClassVar[Collection[str] | None] = ()
    options: ClassVar[Mapping[str, Any]] = {"collective": ShmCollectiveConfig()}


@pytest.mark.costly
class TestAllReduceOverShmOverlap(Overlap):
    alone_cases: ClassVar[Collection[str] | None] = ()
    options: ClassVar[Mapping[str, Any]] = {**Overlap.options, "collective": ShmCollectiveConfig()}


@pytest.mark.costly
@pytest.mark.usefixtures("among_threads")
class TestAllReduceOverGloo(AllReduce):
    alone_cases: ClassVar[Collection[str] | None] = ()
    options: ClassVar[Mapping[str, Any]] = {"collective": GlooCollectiveConfig()}


@pytest.mark.costly
@pytest.mark.usefixtures("among_threads")
class TestAllReduceOverGlooOverlap(Overlap):
    alone_cases: ClassVar[Collection[str] | None] = ()
    options: ClassVar[Mapping[str, Any]] = {**Overlap.options, "collective": GlooCollectiveConfig()}


@pytest.mark.costly
class TestAllReduceAmongProcesses(AllReduce):
    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = TRAVELLING
    options: ClassVar[Mapping[str, Any]] = {"collective": ShmCollectiveConfig()}

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


# -- diloco ---------------------------------------------------------------------------------------


@pytest.mark.costly
class TestDiloco(TrainingSuite):
    """After each step parameters become their mean."""

    alone_verdicts: ClassVar[Verdicts] = ALONE["diloco"]
    verdicts: ClassVar[Verdicts] = TOGETHER["diloco"]
    buffers: ClassVar[Buffers] = "each step"

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return DilocoReducerConfig(inner_steps=1, outer_lr=1.0, outer_momentum=0.0)


@pytest.mark.costly
class TestDilocoSmallSteps(TrainingSuite):
    """Outer steps that are too small for the dtype of the model."""

    alone_cases: ClassVar[Collection[str] | None] = ()
    together_cases: ClassVar[Collection[str] | None] = ("small_bfloat16", "bfloat16", "float16")
    verdicts: ClassVar[Verdicts] = differing("outer steps are made in float32 at least")

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return DilocoReducerConfig(inner_steps=1, outer_lr=0.3, outer_momentum=0.0)


@pytest.mark.costly
class TestDilocoRounds(TrainingSuite):
    """Outer steps with momentum, each after two inner steps."""

    alone_cases: ClassVar[Collection[str] | None] = ()
    verdicts: ClassVar[Verdicts] = differing(
        "an outer step with momentum follows several inner steps"
    )
    together_cases: ClassVar[Collection[str] | None] = tuple(verdicts)

    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return DilocoReducerConfig(inner_steps=2)


# -- model_server ---------------------------------------------------------------------------------


@pytest.mark.costly
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


@pytest.mark.costly
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
