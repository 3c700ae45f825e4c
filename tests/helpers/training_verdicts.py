"""What the built-in reducers do with each case of the training suite that is not equal.

``tests/reducers/test_training.py`` checks them; ``docs/generate.py`` writes docs/training.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pparallel.testing.training import EQUAL, Difference, Refused, Verdict
from pparallel.testing.training.cases import FrozenLater, ParameterAdded, Unfrozen

Verdicts = Mapping[str, Verdict]

WARNING = r"(?i)not finite|refus|NaN"
DENSE = Refused(
    ValueError,
    r"SparseAdam.*(local|SGD|Adagrad|sparse=False)",
    "`start()` refuses `SparseAdam`: the reducer makes gradients dense",
)
OVERLAPPED = Refused(
    RuntimeError,
    r"register_step_pre_hook",
    "with `overlap` gradients are on their way during `backward()`, and may not be changed before"
    " the step; what changes the combined ones goes into a hook of the optimizer",
)
LOOSE = Refused(
    ValueError,
    r"not (a parameter of the model|the model's|in the model).*regist",
    "`start()` refuses parameters of the optimizer that are not the model's: make them the model's"
    " with `register_parameter()`",
)
NO_METRIC = Difference(
    "a dedicated primary has no batches, and so no metric: the learning rate stays as it is, unless"
    " its own loop changes it; with `dedicated: false` it is equal"
)
STALE = Difference(
    "without `pull()` a member computes on old parameters, and with `max_staleness` such gradients"
    " are refused, which a warning tells of once",
    warns=r"refused \(max_staleness\)",
)
NEXT_ROUND = Difference(
    "without `pull()` a round is made in the next `push()`, whose gradients come from the member's"
    " own parameters"
)
OWN_BUFFERS = Difference(
    "buffers are each member's own until `stop()`, and a hook sees those of its member"
)
LATER = Difference(
    "the member's gradient is refused, and its next one takes the place in the step", warns=WARNING
)
OWN_STEPS = Difference(
    "each member's optimizer steps on its own gradients, and then parameters are averaged",
    like="parameters",
)
OWN_HOOKS = Difference(
    "hooks see the gradients and parameters of their own member, before parameters are averaged",
    like="parameters",
)
LEFT_OUT = Difference(
    "parameters that are not finite are left out of the round, and their member goes on from the"
    " outer parameters",
    like="parameters",
    warns=WARNING,
)
NO_STEP = Difference(
    "with `inner_steps: 1` a member whose step is refused has made none: it is left out of the"
    " round, and takes the outer parameters and buffers",
    warns=WARNING,
)
NOT_PUBLISHED = Difference(
    "what the forward pass of a refused step has made of the buffers is not published",
    warns=WARNING,
)
OWN_STATE = Difference(
    "each member's optimizer keeps a state of its own, which sees its own gradients alone",
    like="turns",
)
OWN_SCHEDULE = Difference("each member's scheduler counts its own steps alone", like="turns")

# -- one member alone -----------------------------------------------------------------------------

ALONE: Mapping[str, Verdicts] = {
    "local": {},
    "grad_server": {"sparse_adam": DENSE},
    "all_reduce": {},
    "overlap": {},
    "diloco": {"infinity_taken": LEFT_OUT, "nan_in_buffer": NO_STEP},
    "model_server": {},
}

# -- several members ------------------------------------------------------------------------------


def _in_turns(verdict: Verdict) -> Verdict:
    """Return *verdict*, a refusal, after which optimizers with a state of their own go on."""
    assert isinstance(verdict, Refused)
    return replace(verdict, like="turns")


_GRAD_SERVER: Verdicts = {
    "loose_parameter": LOOSE,
    "sparse_adam": DENSE,
    "infinity_of_one_refused": LATER,
    "push_alone": STALE,
}
_ALL_REDUCE: Verdicts = {"sparse_adam": DENSE, "averaged_buffers": OWN_BUFFERS}
_OWN_LOOSE_WARNING = r"not a parameter of the model"
_OWN_LOOSE = "the parameter is each member's own, and a warning says so"

TOGETHER: Mapping[str, Verdicts] = {
    "grad_server": {  # whose members that train have no optimizer
        **_GRAD_SERVER,
        "plateau_by_hand": NO_METRIC,
        "own_steps": EQUAL,
    },
    "grad_server without a dedicated primary": _GRAD_SERVER,
    "all_reduce": _ALL_REDUCE,
    "overlap": {
        **_ALL_REDUCE,
        **dict.fromkeys(("clip_by_value", "scaled_gradients"), OVERLAPPED),
    },
    "diloco": {
        **dict.fromkeys(("adam", "adam_w", "clip_by_norm", "sparse_adam", "resumed"), OWN_STEPS),
        **dict.fromkeys(("moving_average", "averaged_buffers", "kept_gradient"), OWN_HOOKS),
        **dict.fromkeys(("infinity_of_one_refused", "nan_in_buffer"), NO_STEP),
        "infinity_taken": LEFT_OUT,
        "push_alone": NEXT_ROUND,
        "loose_parameter": Difference(_OWN_LOOSE, like="parameters", warns=_OWN_LOOSE_WARNING),
    },
    "model_server": {
        **dict.fromkeys(
            (
                "momentum",
                "adam",
                "adam_w",
                "parameter_groups",
                "moving_average",
                "averaged_buffers",
                "kept_gradient",
                "sparse_adam",
                "resumed",
                "scaled_gradients",
            ),
            OWN_STATE,
        ),
        **dict.fromkeys(("step_schedule", "cosine_schedule", "plateau_by_hand"), OWN_SCHEDULE),
        "unfrozen": _in_turns(Unfrozen.verdict),
        "frozen_later": _in_turns(FrozenLater.verdict),
        "parameter_added": _in_turns(ParameterAdded.verdict),
        "nan_in_buffer": NOT_PUBLISHED,
        "failing_schedule": OWN_SCHEDULE,
        "loose_parameter": Difference(_OWN_LOOSE, like="turns", warns=_OWN_LOOSE_WARNING),
    },
}
