"""What the reducers of this package are told."""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field

from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.reducer import ReducerConfig
from pparallel_reducers.compression.config import CompressionConfig


class LocalReducerConfig(ReducerConfig, frozen=True):
    """Each member trains a model of its own.

    Attributes:
        backend: selects this backend.
        refuse_nan: whether a step is refused if a gradient has NaN or infinity, or a persistent
            buffer NaN: the push returns False and the gradients are cleared.
    """

    backend: Literal["local"] = "local"
    refuse_nan: bool = False


class GradServerReducerConfig(ReducerConfig, frozen=True):
    """Members push gradients to secondaries, and those to a primary, which steps the optimizer.

    Attributes:
        backend: selects this backend.
        primary: the member that manages the model; by default the first.
        primaries: instead of ``primary``, several members that manage the model together: each
            steps and publishes a share of the parameters, as large as any other's.
        secondaries: the members that take gradients from the others and sum them; by default the
            primaries alone.
        reduce_batch_size: how many messages are summed before they are passed on. It counts at
            each level: a secondary sums so many gradients, the primary so many of those sums, and
            one step of the optimizer takes its square. With *max_staleness* secondaries pass on
            each gradient by itself, and the primary sums the square.
        reduce_method: what the optimizer steps on: the mean or the sum of the gradients.
        reduce_device: where the primary and the secondaries sum. The optimizer steps the managed
            model where its parameters are.
        max_queue_size: how many acknowledged messages may wait at each level; a sender beyond
            that waits. A longer queue lets members run further ahead of the optimizer, so that
            their gradients are of older parameters.
        max_staleness: how many steps the gradients in a step may be behind it: a step waits for
            those on their way that it would make too old. What comes from older parameters all the
            same is refused. With 0 members train in lock-step: each step takes one gradient of each
            member that trains and has not stopped. By default there is no bound.
        dedicated: whether the primaries feed no batches; by default so if there are others. If not,
            steps are made only while the primary's member is in push(), pull(), step() or stop(),
            for in between it computes with the model; what arrives meanwhile goes into one step.
        refuse_nan: whether gradients with NaN or infinity, or with a persistent buffer that holds
            NaN, are refused: the push returns False and they are cleared, for what is added to them
            could not mend them.
        compression: how gradients are made smaller on their way to a secondary; what that leaves
            out is added to the member's next gradient. By default they are sent whole.
        role: whether this ``member`` starts and stops with all others; or, as a ``server`` does,
            waits for nobody: it holds the primary or secondary that is named after it, and nothing
            else; or is a ``client``, which may come at any time, pushes and pulls, and goes. All
            of one job's are members, or none is.
        key: under which the ordered server has the parameters; by default one made of the
            reducer's name. Those of further primaries have their number behind it, and those that
            are frozen, which members find there once, ``/frozen``.
        ordered_server: where the parameters are published; by default the runtime's.
    """

    backend: Literal["grad_server"] = "grad_server"
    primary: str | None = None
    primaries: tuple[str, ...] | None = Field(default=None, min_length=1)
    secondaries: tuple[str, ...] | None = Field(default=None, min_length=1)
    reduce_batch_size: int = Field(default=1, ge=1)
    reduce_method: Literal["mean", "sum"] = "mean"
    reduce_device: str = "cpu"
    max_queue_size: int = Field(default=1, ge=1)
    max_staleness: int | None = Field(default=None, ge=0)
    dedicated: bool | None = None
    refuse_nan: bool = False
    compression: CompressionConfig | None = None
    role: Literal["member", "server", "client"] = "member"
    key: str | None = None
    ordered_server: OrderedServerConfig | None = None


class ModelServerReducerConfig(ReducerConfig, frozen=True):
    """Each member steps its own optimizer and pushes its parameters as the next version.

    Attributes:
        backend: selects this backend.
        rebase: whether a step whose parameters came second is put onto those that came first, and
            pushed again until it is accepted. Without it such a step is refused and counted so.
        pull_on_fail: without ``rebase``: whether a refused push takes the newest parameters. If it
            does not, the member goes on with its own, which no push will get through, until it
            pulls, as step() does after each push.
        refuse_nan: whether a step is refused if a gradient has NaN or infinity, or a persistent
            buffer NaN: the push returns False and the gradients are cleared.
        ordered_server: where the parameters are; by default the runtime's.
    """

    backend: Literal["model_server"] = "model_server"
    rebase: bool = True
    pull_on_fail: bool = True
    refuse_nan: bool = False
    ordered_server: OrderedServerConfig | None = None


class DilocoReducerConfig(ReducerConfig, frozen=True):
    """Each member steps its own optimizer; now and then an outer step averages them (DiLoCo).

    Attributes:
        backend: selects this backend.
        coordinator: the member that averages, and whose parameters all begin with; by default the
            first. The training ends with it.
        inner_steps: how many steps each member makes by itself before each outer step.
        outer_lr: learning rate of the outer step, which is Nesterov's.
        outer_momentum: its momentum.
        round_timeout: seconds that an outer step waits for the other members, from when the first
            of them is there; by default without limit. What comes later is counted as late and
            lost.
        compression: how the differences are made smaller on their way to the coordinator; by
            default not at all.
        refuse_nan: whether a step is refused if a gradient has NaN or infinity, or a persistent
            buffer NaN: the push returns False and the gradients are cleared. A member whose buffers
            hold NaN at the end of a round is left out of it.
    """

    backend: Literal["diloco"] = "diloco"
    coordinator: str | None = None
    inner_steps: int = Field(default=100, ge=1)
    outer_lr: float = Field(default=0.7, gt=0, allow_inf_nan=False)
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)
    round_timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    compression: CompressionConfig | None = None
    refuse_nan: bool = False


class AllReduceReducerConfig(ReducerConfig, frozen=True):
    """Members step their own optimizers at once, on the mean of all their gradients.

    Attributes:
        backend: selects this backend.
        bucket: how many bytes of gradients travel together; a larger tensor travels alone.
        overlap: whether gradients travel during ``backward()``, in buckets that are filled from the
            last parameter to the first. Several passes before a step then go inside
            ``accumulate()``, all but the last.
        reduce_method: what the optimizers step on: the mean or the sum of the gradients.
        broadcast_buffers: whether all take the buffers of the first member, such as running means,
            after every step; by default each keeps its own, and they are averaged in the end.
        refuse_nan: whether a step is refused in all members if a gradient in one of them has NaN or
            infinity, or a persistent buffer NaN: the push returns False and the gradients are
            cleared.
        collective: how the members reduce; by default the runtime's.
    """

    backend: Literal["all_reduce"] = "all_reduce"
    bucket: ByteSize = Field(default=ByteSize(25 << 20), gt=0)
    overlap: bool = False
    reduce_method: Literal["mean", "sum"] = "mean"
    broadcast_buffers: bool = False
    refuse_nan: bool = False
    collective: CollectiveConfig | None = None
