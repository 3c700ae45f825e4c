"""What happens among members from one start to its stop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pparallel.errors import PeerLostError
from pparallel.interfaces.collective import Collective
from pparallel.runtime.member import Member
from pparallel_reducers.all_reduce.causes import Causes
from pparallel_reducers.all_reduce.exchange import Exchange, Nothing, Straight
from pparallel_reducers.all_reduce.roll import Signal, Word, count_ready
from pparallel_reducers.all_reduce.state import State
from pparallel_reducers.config import AllReduceReducerConfig
from pparallel_reducers.gradients import (
    DTYPE_ADVICE,
    UNUSED_ADVICE,
    first_not_finite,
    first_with_nan,
    gradient,
    gradient_in_its_dtype,
)
from pparallel_reducers.layout import ADVICE, ModelTensors
from pparallel_reducers.stepping import OptimizerStep


class Run:
    """One run of one member, in a group of its own.

    Once a step was left in the middle, members cannot know how far the others are: the group ends,
    which wakes them, and whatever follows raises what happened.

    Attributes:
        exchange: how gradients travel.
        state: what all begin and end with.
        failed: whether this member's optimizer has failed, so that its model is its own.
        error: what has ended it too early, if anything has.
    """

    def __init__(
        self,
        config: AllReduceReducerConfig,
        group: Collective,
        member: Member,
        sent: Callable[[int], None],
        own: OptimizerStep,
        tensors: ModelTensors,
        causes: Causes,
    ) -> None:
        self._causes = causes
        self._config, self._group, self._member = config, group, member
        self._alone = group.size() == 1
        self._sent = (lambda _: None) if self._alone else sent
        # What the optimizer steps beside the model, such as a learnable weight of the loss, is
        # reduced with it. It need not have a gradient in every step.
        others = list(own.others())
        self._model, self._tensors = own.model, tensors
        self._trainable = [*tensors.trainable, *others]
        self._optional = [each for _, each in others]
        self.error: Exception | None = None
        self.exchange = self._made_exchange()
        self.state = State(
            group, member.names, tensors, own.model, others, config.bucket, self._sent
        )
        self.failed = False

    def _made_exchange(self) -> Exchange:
        config = self._config
        mean = config.reduce_method == "mean"
        kind = self._kind_of_exchange()
        return kind(self._group, self._trainable, config.bucket, mean, self._optional)

    def _kind_of_exchange(self) -> type[Exchange]:
        if self._alone:
            return Nothing
        if self._group.straight and not self._config.overlap:
            return Straight
        from pparallel_reducers.all_reduce.flats import Flattened
        from pparallel_reducers.all_reduce.overlap import DuringBackward

        return DuringBackward if self._config.overlap else Flattened

    def begin(self) -> None:
        """Make sure that all have the same, and give them what the first member has.

        Raises:
            ValueError: one has another model, or another config.
        """
        settings = self._config.model_dump(mode="json", exclude={"backend", "collective"})
        sizes = {"elements of each bucket": self.exchange.sizes}
        with self._together():
            wrong = self.state.compare({**settings, **sizes}, self.exchange.device)
        if wrong is not None:
            self.exchange.close()
            raise wrong
        with self._together():
            self.state.spread()

    # -- steps ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what has ended it too early.

        Raises:
            Exception: if anything has.
        """
        if self.error is not None:
            raise copy.copy(self.error)

    def pushes(self) -> Signal:
        """Return what this member has to say of its gradients."""
        if self.failed:
            return Signal(Word.FAILED)
        if self._is_altered():
            return Signal(Word.ALTERED)
        if (heeded := self.exchange.heed()) is not None:
            return heeded
        if (fault := self._unfit_gradient()) is not None:
            return fault
        return self._not_finite() if self._config.refuse_nan else Signal(Word.READY)

    def _unfit_gradient(self) -> Signal | None:
        """Return what is to be said of the first parameter whose gradient cannot be combined.

        Alone, gradients are handed to the optimizer as they are, of whatever dtype.
        """
        needed = len(self._tensors.trainable)
        for place, (_, each) in enumerate(self._trainable):
            if (gradient := each.grad) is None:
                if place < needed:
                    return Signal(Word.MISSING, place)
            elif gradient.dtype != each.dtype and not self._alone:
                return Signal(Word.OTHER_DTYPE, place)
        return None

    def _is_altered(self) -> bool:
        if self._tensors.has_changed(self._model):
            return True
        try:
            self._tensors.buffers(self._model)
        except ValueError:  # refuse() raises it, once all members know
            return True
        return False

    def _not_finite(self) -> Signal:
        found = [(name, each.grad) for name, each in self._trainable]
        if name := first_not_finite((name, each) for name, each in found if each is not None):
            return Signal(Word.NOT_FINITE, [name for name, _ in self._trainable].index(name))
        buffers = self._tensors.buffers(self._model)
        if (name := first_with_nan(buffers)) is not None:
            return Signal(Word.BUFFER_NAN, [name for name, _ in buffers].index(name))
        return Signal(Word.READY)

    def stops(self) -> Signal:
        """Return what this member has to say when it stops."""
        return Signal(Word.FAILED if self.failed else Word.STOPPED)

    def make(self, mine: Signal) -> list[Signal]:
        """Say *mine* and hear what all say; combine the gradients if the step is made.

        Raises:
            PeerLostError: a member is gone.
            RuntimeError: a member's optimizer has failed.
        """
        with self._together():
            signals = self.exchange.make(mine)
        if mine.word is Word.READY and count_ready(signals):
            self._sent(self.exchange.nbytes)
        words = [each.word for each in signals]
        if Word.FAILED in words:
            name = self._member.names[words.index(Word.FAILED)]
            message = f"the optimizer of member {name!r} failed: its model is its own from then on"
            self.error = RuntimeError(message)
            self.exchange.close()
            raise self.error
        return signals

    def step_was_made(self) -> None:
        """Do what comes after a step."""
        if self._config.broadcast_buffers:
            with self._together():
                self.state.spread_buffers()

    def step_failed(self) -> None:
        """Note that this member's optimizer has failed; alone, it may be tried again."""
        self.failed = not self._alone

    def tell_failure(self) -> None:
        """Have the others know at once that the optimizer has failed, and raise nothing of it."""
        if self.failed:
            with suppress(Exception):  # there is another error to raise
                self.make(self.stops())

    def finish(self) -> None:
        """Have all members end with one model."""
        with self._together():
            self.state.settle()
            if self._config.broadcast_buffers:
                self.state.spread_buffers()
            else:
                self.state.average_buffers()

    def close(self) -> None:
        """End it for this member, and wake whoever waits for it; safe to call again."""
        self.exchange.close()
        self._group.close()

    # -- refusals -------------------------------------------------------------------------------

    def refuse(self, mine: Signal, signals: list[Signal]) -> str:
        """Say why the step was not made: return it if it is the config's will, raise it else.

        Raises:
            ValueError: a parameter has no gradient, or one of another dtype, here or in another
                member, or a model has other parameters than at the start.
            RuntimeError: a gradient changed on its way.
        """
        worst = max(each.word for each in signals)
        at_fault = mine if mine.word is worst else next(x for x in signals if x.word is worst)
        here = at_fault is mine
        member = self._member.names[signals.index(at_fault)]
        if worst is Word.ALTERED:
            if here:
                self._tensors.validate(self._model)
                self._tensors.buffers(self._model)
            raise ValueError(f"the parameters of member {member!r} changed since start(): {ADVICE}")
        who = "" if here else f" of member {member!r}"
        if worst is Word.BUFFER_NAN:
            return f"buffer {self.state.buffer_names[at_fault.place]!r}{who} holds NaN"
        name, parameter = self._trainable[at_fault.place]
        if worst is Word.NOT_FINITE:
            return f"the gradient of {name!r}{who} is not finite"
        if worst is Word.MISSING:
            if here:
                gradient(name, parameter)
            message = (
                f"parameter {name!r}{who} has no gradient: in each step, the losses of all members"
                f" depend on the same parameters. {UNUSED_ADVICE}"
            )
            raise ValueError(message)
        if worst is Word.OTHER_DTYPE:
            if here:
                gradient_in_its_dtype(name, parameter)
            message = f"the gradient of {name!r}{who} is not of the parameter's dtype"
            raise ValueError(f"{message}: {DTYPE_ADVICE}")
        raise _change(worst, name, who)

    # -- ends -----------------------------------------------------------------------------------

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Do what all members do; if it is left in the middle, it is the last of that kind."""
        self.check()
        try:
            yield
        except PeerLostError as error:
            found = self.error = self._causes.find(error)
            self.close()
            raise found from None if found is error else error
        except BaseException as error:
            why = f"a step was left in the middle, by {error!r}"
            self.error = error if isinstance(error, Exception) else RuntimeError(why)
            self.close()
            raise


def _change(word: Word, name: str, who: str) -> RuntimeError:
    what = {
        Word.CHANGED: f"the gradient of {name!r}{who} was changed after it was handed in",
        Word.TWICE: f"the gradient of {name!r}{who} came twice",
    }
    message = (
        f"{what[word]}: with 'overlap' gradients are handed in during backward(). What is to change"
        " the combined gradients, such as clipping, goes into a hook"
        " (optimizer.register_step_pre_hook), and all backward passes before a step but the last"
        " go inside 'with reducer.accumulate():'"
    )
    return RuntimeError(message)
