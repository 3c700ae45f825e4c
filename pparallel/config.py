"""The config that every backend's config derives from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import override

from pparallel.errors import ConfigError, UnknownBackendError, did_you_mean

T = TypeVar("T")
Narrow = Callable[[type["BackendConfig[Any]"], str | None], type["BackendConfig[Any]"]]

_secrets: set[str] = set()  # names of the fields of all configs that hold secrets
_narrow: ContextVar[Narrow | None] = ContextVar("pparallel_narrow", default=None)


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_is_secret, get_args(annotation)))


def secret_names() -> Set[str]:
    """Return the names of the options that hold secrets, in any config that has been imported."""
    return _secrets


@contextmanager
def narrowing(narrow: Narrow) -> Iterator[None]:
    """Let mappings validated inside become the config class that *narrow* finds for them.

    *narrow* takes the interface's base config and the ``backend`` that the mapping names
    (``None``: it names none), and returns the config class of that backend.
    """
    token = _narrow.set(narrow)
    try:
        yield
    finally:
        _narrow.reset(token)


def current_narrow() -> Narrow | None:
    """Return the function that :func:`narrowing` has set, if it has."""
    return _narrow.get()


class Config(BaseModel, frozen=True, extra="forbid", arbitrary_types_allowed=True):
    """A frozen record whose unknown keys are refused with the nearest known one.

    What is given for a field of type ``SecretStr`` is shown in no error.
    """

    if not TYPE_CHECKING:  # a type checker goes by frozen=True

        @override
        def __setattr__(self, name: str, value: object) -> None:
            with refusing():
                super().__setattr__(name, value)

        @override
        def __delattr__(self, name: str) -> None:
            with refusing():
                super().__delattr__(name)

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        found = [name for name, each in cls.model_fields.items() if _is_secret(each.annotation)]
        _secrets.update(found)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            unknown = [str(key) for key in value if key not in cls.model_fields]
            if unknown:
                known = sorted(cls.model_fields)
                raise PydanticCustomError(
                    "unknown_key",
                    "unknown key {key}; allowed: {known}.{hint}",
                    {
                        "key": repr(unknown[0]),
                        "known": ", ".join(known),
                        "hint": did_you_mean(unknown[0], known),
                        "at": unknown[0],
                    },
                )
        return value


class BackendConfig(Config, Generic[T], frozen=True):
    """What it takes to build one ``T``: a backend's name and its options.

    Attributes:
        interface: the interface that the backend fills, as its section of a config is called.
        backend: the backend's name; each concrete config gives it a default.
    """

    interface: ClassVar[str]
    backend: str

    @model_validator(mode="wrap")
    @classmethod
    def _become_the_named_backend(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Any:
        """Hand a mapping to the config class that its ``backend`` key names."""
        narrow = _narrow.get()
        if not isinstance(value, Mapping):
            return handler(value)
        if narrow is None:
            if "backend" not in value and cls.model_fields["backend"].is_required():
                kind = getattr(cls, "interface", "backend").replace("_", " ")
                message = (
                    f"{cls.__name__} is the config of any {kind}:"
                    f' name a backend, as in {cls.__name__}(backend="..."), or give its own config;'
                    " 'pparallel backends' lists them"
                )
                raise ConfigError(message, path="backend")
            with refusing():
                return handler(value)
        try:
            target = narrow(cls, value.get("backend"))
        except UnknownBackendError as error:
            raise PydanticCustomError(
                "unknown_backend", "{message}", {"message": str(error), "error": error}
            ) from error
        if target is cls:
            return handler(value)
        return target.model_validate(value)


@contextmanager
def refusing(source: str = "", path: str = "") -> Iterator[None]:
    """Turn pydantic's errors into a :class:`ConfigError` that gives each key's whole path.

    One that is raised inside is given *source* and *path* too.
    """
    try:
        yield
    except ConfigError as error:
        error.locate(path, source)
        raise
    except ValidationError as error:
        raise _config_error(error, source, path) from None


def _config_error(error: ValidationError, source: str, prefix: str) -> ConfigError:
    problems: list[ConfigError] = []
    for each in error.errors(include_url=False):
        parts = [prefix, *map(str, each["loc"])]
        context = each.get("ctx", {})
        if each["type"] == "unknown_key":
            parts.append(context["at"])
        path = ".".join(part for part in parts if part)
        if each["type"] == "unknown_backend" and error.error_count() == 1:
            found: UnknownBackendError = context["error"]
            return UnknownBackendError(
                found.interface,
                found.name,
                found.known,
                broken=found.broken,
                path=f"{path}.backend".lstrip("."),
                source=source,
            )
        problems.append(ConfigError(_explained(each), path=path, source=source))
    return ConfigError.of_all(problems)


def _explained(problem: Any) -> str:
    message: str = problem["msg"]
    if problem["type"] in ("unknown_key", "unknown_backend", "missing"):
        return message
    if problem["type"] == "frozen_instance":
        return "a config cannot be changed: make another, as config.model_copy(update={...}) does"
    if _secrets.intersection(map(str, problem["loc"])) or _holds_secret(problem["input"]):
        return f"{message}; what was given is not shown, as it may be a secret"
    return f"{message}, not {problem['input']!r}"


def _holds_secret(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(_secrets.intersection(map(str, value))) or any(
            map(_holds_secret, value.values())
        )
    return isinstance(value, list | tuple) and any(map(_holds_secret, value))
