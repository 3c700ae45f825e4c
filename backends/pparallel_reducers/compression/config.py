"""How what reducers push is made smaller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from pparallel.config import Config
from pparallel.errors import did_you_mean


class _Kind(Config, frozen=True, json_schema_extra={"required": ["kind"]}):
    """A typed config knows its kind; a mapping has to say it."""


class Bf16CompressionConfig(_Kind, frozen=True):
    """Each number is sent as bfloat16: half the bytes of float32.

    Attributes:
        kind: selects this kind.
    """

    kind: Literal["bf16"] = "bf16"


class TopKCompressionConfig(_Kind, frozen=True):
    """Only the entries of the largest magnitude are sent, each with its index.

    Attributes:
        kind: selects this kind.
        ratio: the share of the entries that is sent.
    """

    kind: Literal["topk"] = "topk"
    ratio: float = Field(default=0.01, gt=0, le=1)


class PowerSgdCompressionConfig(_Kind, frozen=True):
    """Each matrix is sent as the product of two thin ones; vectors are sent as they are.

    Attributes:
        kind: selects this kind.
        rank: how many columns the thin matrices have.
    """

    kind: Literal["powersgd"] = "powersgd"
    rank: int = Field(default=4, ge=1)


_Kinds: TypeAlias = Bf16CompressionConfig | TopKCompressionConfig | PowerSgdCompressionConfig
_KINDS: dict[str, type[_Kinds]] = {
    "bf16": Bf16CompressionConfig,
    "topk": TopKCompressionConfig,
    "powersgd": PowerSgdCompressionConfig,
}


def _by_kind(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Hand a mapping to the config class of its kind, so that errors give the keys' own paths."""
    if not isinstance(value, Mapping):
        return handler(value)
    kind = value.get("kind")
    config = _KINDS.get(kind) if isinstance(kind, str) else None
    if config is None:
        known = ", ".join(_KINDS)
        asked = "no 'kind' is given" if kind is None else f"unknown kind {kind!r}"
        hint = did_you_mean(str(kind), _KINDS)
        facts = {"message": f"{asked}; allowed: {known}.{hint}", "at": "kind"}
        raise PydanticCustomError("unknown_key", "{message}", facts)
    return config.model_validate(value)


#: One of the kinds, told apart by ``kind``.
CompressionConfig = Annotated[_Kinds, Field(discriminator="kind"), WrapValidator(_by_kind)]
