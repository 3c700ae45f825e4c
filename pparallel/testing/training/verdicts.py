"""Verdicts: what a reducer does with a feature of PyTorch, as is declared and as is proved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: How the work of several members is combined in plain torch; see ``training.plain``.
Way: TypeAlias = Literal["gradients", "parameters", "sequence", "turns"]


@dataclass(frozen=True)
class Equal:
    """Parameters, losses and what hooks see are those of plain torch."""


@dataclass(frozen=True)
class Difference:
    """The result differs from plain torch in a way that is documented.

    Attributes:
        sentence: how it differs, for the documentation.
        like: which other way of plain torch it equals. With None it is checked that all members
            end with the same finite parameters, that they have been trained, and, unless the
            config's documentation says otherwise, that no push was refused.
        warns: a pattern of the warning that is logged, if there is one.
    """

    sentence: str
    like: Way | None = None
    warns: str | None = None


@dataclass(frozen=True)
class Refused:
    """An exception says what to do, and leaves the model as it was.

    A case that changes the model follows the advice; what comes of it is then that of plain torch.

    Attributes:
        error: the type of the exception.
        advice: a pattern of its message that says what to do.
        sentence: what is refused, for the documentation.
        like: which other way of plain torch it equals once the advice was followed.
        managing: whether only members that manage the model get it, and others go on.
    """

    error: type[Exception]
    advice: str
    sentence: str
    like: Way | None = None
    managing: bool = False


Verdict: TypeAlias = Equal | Difference | Refused

EQUAL = Equal()


def word(verdict: Verdict) -> str:
    """Return the short form of *verdict*."""
    if isinstance(verdict, Equal):
        return "equal"
    return "differs" if isinstance(verdict, Difference) else "refused"
