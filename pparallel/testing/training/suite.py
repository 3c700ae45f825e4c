"""TrainingSuite: what becomes of PyTorch's features on a reducer."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pytest

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import Reducer, ReducerConfig
from pparallel.testing.suite import Suite, changed, requires
from pparallel.testing.threads import in_threads
from pparallel.testing.training.verdicts import Difference, Equal, Refused, Verdict, Way

if TYPE_CHECKING:
    from pparallel.testing.training.case import Case, Tolerance
    from pparallel.testing.training.outcome import Outcome
    from pparallel.testing.training.plain import Buffers
    from pparallel.testing.training.program import Plan

LIMIT = 160.0  #: seconds that a job may take, whatever starts its members


class TrainingSuite(Suite):
    """Subclass it, and give a fixture ``config``: the reducer's config.

    One training loop runs on the reducer for each case, a feature of PyTorch, and again in plain
    torch, in one process, on the same data. Each case has a verdict: the result is equal; or it
    differs as is documented; or an exception says what to do. The suite checks the declared one.

    Attributes:
        members: the names of the members, or how many there are.
        verdicts: those of cases with several members that are not the cases' own, by name.
        alone_verdicts: those of one member alone.
        way: how several members train together, as :func:`training.plain.train` takes it.
        buffers: when the members' buffers become their mean.
        in_turns: whether members make their steps one after another.
        alone_cases: the names of the cases with one member; None stands for all.
        together_cases: the names of those with several members.
    """

    interface: ClassVar[str] = "reducer"
    limit: ClassVar[float] = 170.0
    members: ClassVar[int | Sequence[str]] = 3
    verdicts: ClassVar[Mapping[str, Verdict]] = {}
    alone_verdicts: ClassVar[Mapping[str, Verdict]] = {}
    way: ClassVar[Way] = "gradients"
    buffers: ClassVar[Buffers] = "end"
    in_turns: ClassVar[bool] = False
    alone_cases: ClassVar[Collection[str] | None] = None
    together_cases: ClassVar[Collection[str] | None] = None

    @classmethod
    def cases(cls) -> Sequence[Case]:
        """Return the cases; an author may add further ones."""
        from pparallel.testing.training.cases import every

        return every()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test of each case."""
        if "case" not in metafunc.fixturenames:
            return
        alone = metafunc.function.__name__ == "test_alone"
        names = self.alone_cases if alone else self.together_cases
        cases = [each for each in self.cases() if names is None or each.name in names]
        metafunc.parametrize("case", cases, ids=[each.name for each in cases])

    @pytest.fixture
    def parts(self) -> Mapping[str, Any]:
        """Return further parts of the members' config, such as the transport."""
        return {}

    # -- tests --------------------------------------------------------------------------------

    def test_alone(self, case: Case, config: ReducerConfig, build: Callable[..., Reducer]) -> None:
        """One member alone trains as plain torch does, bit for bit."""
        verdict = self.alone_verdicts.get(case.name, case.verdict)
        changed_config = _with_options(config, case)

        def run(resumed: bool) -> list[Outcome]:
            return self._train_alone(case, changed_config, build, resumed)

        tolerance = (0.0, 0.0) if case.exact else case.tolerance
        _check_run(case, verdict, run, Plain("gradients", "own", 1), tolerance, logs=True)

    @requires("shared")
    def test_together(
        self,
        case: Case,
        config: ReducerConfig,
        launcher: LauncherConfig,
        parts: Mapping[str, Any],
    ) -> None:
        """Several members train as plain torch does on all batches."""
        verdict = self.verdicts.get(case.name, case.verdict)
        reducer = _with_options(config, case)
        job = pparallel.RuntimeConfig(
            members=self.members, **{"launcher": launcher, "reducer": reducer, **parts}
        )

        def run(resumed: bool) -> list[Outcome]:
            return self._train_together(case, job, resumed)

        plain = Plain(self.way, self.buffers, len(job.names))
        _check_run(case, verdict, run, plain, case.tolerance, logs=launcher.backend == "thread")

    # -- jobs ---------------------------------------------------------------------------------

    def _train_alone(
        self, case: Case, config: ReducerConfig, build: Callable[..., Reducer], resumed: bool
    ) -> list[Outcome]:
        from pparallel.testing.training.program import Loop

        outcomes: list[Outcome] = []
        for plan in _plans(case, outcomes, resumed):
            with build(config) as reducer:
                outcomes[:] = [Loop(reducer, plan, 0).train()]
        return outcomes

    def _train_together(
        self, case: Case, job: pparallel.RuntimeConfig, resumed: bool
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for plan in _plans(case, outcomes, resumed, self.in_turns):
            (results,) = in_threads(1, partial(_launch, job, plan), LIMIT)
            outcomes[:] = results
        return outcomes


def _plans(
    case: Case, outcomes: Sequence[Outcome], resumed: bool, in_turns: bool = False
) -> Iterator[Plan]:
    """Return one plan, or two if it is *resumed*: the second goes on from what the first saved."""
    from pparallel.testing.training.program import Plan

    first = 0
    if resumed and (middle := case.resume_at) is not None:
        yield Plan(case, 0, middle, {}, in_turns)
        first = middle
        if not all(each.state for each in outcomes):
            return  # something was refused, which is reported
    states = {each.rank: each.state for each in outcomes}
    losses = {each.rank: each.losses for each in outcomes}
    yield Plan(case, first, case.steps, states, in_turns)
    for each in outcomes:
        each.losses[:0] = losses.get(each.rank, [])


def _launch(job: pparallel.RuntimeConfig, plan: Plan, _: int) -> list[Outcome]:
    from pparallel.testing.training.program import JobEndedError, train_as_member

    try:
        outcomes: list[Outcome] = pparallel.launch(job, train_as_member, (plan,))
    except JobEndedError as error:
        return [error.outcome]
    return outcomes


def _with_options(config: ReducerConfig, case: Case) -> ReducerConfig:
    """Return *config* with the options of *case*."""
    if missing := set(case.options) - set(type(config).model_fields):
        pytest.skip(f"the reducer has no option {', '.join(sorted(missing))}")
    return changed(config, **case.options) if case.options else config


# -- checks ---------------------------------------------------------------------------------------


class Plain(NamedTuple):
    """How plain torch trains what so many members do; see :func:`training.plain.train`."""

    way: Way
    buffers: Buffers
    members: int


def _check_run(
    case: Case,
    verdict: Verdict,
    run: Callable[[bool], list[Outcome]],
    plain: Plain,
    tolerance: Tolerance | None,
    *,
    logs: bool,
) -> None:
    """Check that what *run* returns is as *verdict* says.

    Args:
        case: what is trained.
        verdict: what is to come of it.
        run: trains; with True it is resumed in the middle, if the case is one of that kind.
        plain: how plain torch trains.
        tolerance: of the comparison with it.
        logs: whether what members log is seen here.
    """
    with _warnings() as warned:
        outcomes = run(True)
    if isinstance(verdict, Refused):
        _check_refused(case, verdict, outcomes)
    else:
        _check_nothing_refused(case, outcomes)
    if isinstance(verdict, Difference) and verdict.like is None:
        _check_trained(case, outcomes, _plainly(case, outcomes, None, plain)[0])
        if case.resume_at is not None:
            _check_like(case, outcomes, run(False), None)
    elif not isinstance(verdict, Refused) or case.change_at is not None:
        way = None if isinstance(verdict, Equal) else verdict.like
        _check_like(case, outcomes, _plainly(case, outcomes, way, plain), tolerance)
    if logs:
        _check_warnings(case, verdict, warned)


def _plainly(
    case: Case, outcomes: Sequence[Outcome], way: Way | None, plain: Plain
) -> list[Outcome]:
    from pparallel.testing.training.plain import train

    ranks = [each.rank for each in outcomes if each.trains]
    if len(outcomes) < plain.members:  # a member has ended the job
        ranks = [*range(plain.members)]
    return train(case, ranks, way or plain.way, plain.buffers)


def _check_refused(case: Case, verdict: Refused, outcomes: Sequence[Outcome]) -> None:
    from pparallel.testing.training.outcome import is_refused

    matching = [each for each in outcomes if is_refused(each, verdict.error, verdict.advice)]
    found = {each.rank: [refusal[:3] for refusal in each.refusals] for each in outcomes}
    expected = f"{verdict.error.__name__} with {verdict.advice!r}"
    assert matching, f"{case.name}: no member got a {expected}, but {found}"
    harmed = {each.rank: refusal.harmed for each in matching for refusal in each.refusals[:1]}
    assert not any(harmed.values()), f"{case.name}: a call that was refused changed {harmed}"
    if case.change_at is not None:
        assert all(each.ended for each in outcomes), f"{case.name}: did not go on, but {found}"
        return
    concerned = [each for each in outcomes if each.manages or not verdict.managing]
    silent = [each.rank for each in concerned if each.ended and each.trains]
    assert not silent, f"{case.name}: members {silent} were told of nothing"


def _check_nothing_refused(case: Case, outcomes: Sequence[Outcome]) -> None:
    found = {each.rank: each.refusals for each in outcomes if each.refusals}
    if case.ends is None:
        assert not found, f"{case.name}: refused: {found}"
        return
    messages = [refusal.message for each in outcomes for refusal in each.refusals]
    assert any(re.search(case.ends, each) for each in messages), f"{case.name}: {messages}"
    kept = [each.rank for each in outcomes if each.manages and each.trains and not each.cleared]
    assert not kept, f"{case.name}: the step counts, and members {kept} keep their gradients"


def _check_trained(case: Case, outcomes: Sequence[Outcome], plain: Outcome) -> None:
    """Check that all have the same finite parameters, and have moved those that plain torch has."""
    import torch

    from pparallel.testing.training.case import Training

    first = outcomes[0].parameters
    for each in outcomes:
        message = f"{case.name}: the members have different models"
        torch.testing.assert_close(each.parameters, first, rtol=0, atol=0, msg=message)
    assert all(each.isfinite().all() for each in first.values()), f"{case.name}: not finite"
    for name, start in Training(case, 0).module.named_parameters():
        moves = not torch.allclose(start, plain.parameters[name], equal_nan=True)
        still = torch.equal(start, first[name])
        assert not (moves and still), f"{case.name}: {name!r} was not trained"


def _check_like(
    case: Case,
    outcomes: Sequence[Outcome],
    plain: Sequence[Outcome],
    tolerance: Tolerance | None,
) -> None:
    from pparallel.testing.training.outcome import check_equal

    by_rank = {each.rank: each for each in plain}
    for each in outcomes:
        if case.ends is not None and not each.manages:
            continue  # it may get the error before the last step, or after
        expected = by_rank.get(each.rank, plain[0])
        managing = expected if expected.manages else plain[0]
        check_equal(case, each, expected, managing.notes, tolerance)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what is logged as a warning."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield found
    finally:
        root.removeHandler(handler)


def _check_warnings(case: Case, verdict: Verdict, warned: Sequence[str]) -> None:
    if isinstance(verdict, Refused):
        return
    pattern = verdict.warns if isinstance(verdict, Difference) else None
    for each in filter(None, (pattern, case.warns)):
        found = any(re.search(each, message) for message in warned)
        assert found, f"{case.name}: no warning with {each!r} was logged, but {warned}"
