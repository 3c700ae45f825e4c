"""The config that every backend's config derives from."""

from __future__ import annotations

import functools
import re
import reprlib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import override

from pparallel.errors import ConfigError, UnknownBackendError, did_you_mean

T = TypeVar("T")

_secrets: set[str] = set()  # names of the fields of all configs that hold secrets


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_is_secret, get_args(annotation)))


def secret_names() -> Set[str]:
    """Return the names of the options that hold secrets, in any config that has been imported."""
    return _secrets


class Config(BaseModel, frozen=True, extra="forbid", arbitrary_types_allowed=True):
    """A frozen record whose unknown keys are refused with the nearest known one.

    What is given for a field of type ``SecretStr`` is shown in no error.

    Attributes:
        short: the field that a number in place of the whole config stands for; empty: none.
        synonyms: keys of other libraries, and the fields that they are called here: they make
            hints of errors, never values. Those of base classes count too.
    """

    short: ClassVar[str] = ""
    synonyms: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker goes by the fields, and by frozen=True

        @functools.wraps(BaseModel.__init__)
        def __init__(self, /, *args: object, **data: object) -> None:
            if args:
                named = self.short and isinstance(args[0], int)  # anything else may be a secret
                given = f"{self.short}={args[0]}" if named else "option=..."
                raise ConfigError(f"give options by name: {type(self).__name__}({given})")
            with refusing():
                self.__pydantic_validator__.validate_python(
                    data, self_instance=self, context=self._context()
                )

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

    @classmethod
    def _context(cls) -> dict[str, Any] | None:
        """Return the validation context of a config that is made by its constructor."""
        return None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            known = cls.model_fields
            unknown = {
                str(key): cls._hint(str(key), value[key]) for key in value if key not in known
            }
            if unknown:
                key = next((each for each, hint in unknown.items() if hint), next(iter(unknown)))
                allowed = f"unknown key {key!r}; allowed: {', '.join(sorted(known))}"
                facts = {"message": unknown[key] or allowed, "at": key}
                raise PydanticCustomError("unknown_key", "{message}", facts)
        return value

    @classmethod
    def _hint(cls, key: str, value: object) -> str:
        """Say what to write instead of an unknown key; an empty string if nobody knows."""
        for each in cls.__mro__:
            name = each.__dict__.get("synonyms", {}).get(key)
            if name is not None:
                backend = getattr(cls.model_fields.get("backend"), "default", None)
                what = f"backend {backend!r}" if isinstance(backend, str) else cls.__name__
                lacking = "" if name in cls.model_fields else f", and {what} has no such option"
                return f"{key!r} is called {name!r} here{lacking}"
        hint = did_you_mean(key, cls.model_fields)
        return f"unknown key {key!r}.{hint}" if hint else ""


class BackendConfig(Config, Generic[T], frozen=True):
    """What it takes to build one ``T``: a backend's name and its options.

    Text in its place is the name, a number the option that ``short`` names.

    Attributes:
        interface: the interface that the backend fills, as its section of a config is called.
        default_backend: the interface's backend where none is named.
        backend: the backend's name; each concrete config gives it a default. In the config of any
            backend it is the interface's default, as in a section that names none.
    """

    interface: ClassVar[str]
    default_backend: ClassVar[str]
    synonyms: ClassVar[Mapping[str, str]] = dict.fromkeys(("type", "name", "kind"), "backend")
    backend: str = Field(default_factory=str)

    @classmethod
    def how_to_build(cls, interface: str) -> str:
        """Say how an object of the class *interface*, which this is the config of, is built."""
        options = f", {cls.short}=2" if cls.short else ""
        return (
            f'{interface} is an interface: build("{cls.interface}:{cls.default_backend}"{options})'
        )

    @classmethod
    def expanded(cls, value: Any) -> Any:
        """Return the mapping that text or a number stands for, and all else as it is."""
        if isinstance(value, str):
            return {"backend": value.removeprefix(f"{getattr(cls, 'interface', '')}:")}
        if cls.short and isinstance(value, int) and not isinstance(value, bool):
            return {cls.short: value}
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _become_the_named_backend(
        cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Any:
        """Hand a mapping to the config class that its ``backend`` key names.

        The registry of the validation context, if it has one, finds that class.
        """
        value = cls.expanded(value)
        if not isinstance(value, Mapping):
            if not isinstance(value, cls):
                number = f", a number ({cls.short})" if cls.short else ""
                message = "the name of a backend{number}, or a mapping of options"
                raise PydanticCustomError("section", message, {"number": number})
            return handler(value)
        registry = (info.context or {}).get("registry")
        if cls.model_fields["backend"].default_factory is not None and hasattr(cls, "interface"):
            name = cls.default_backend if value.get("backend") is None else value["backend"]
            value = {**value, "backend": name}
            if registry is not None and isinstance(name, str):
                try:
                    target = registry.config(cls.interface, name)
                except UnknownBackendError as error:
                    raise PydanticCustomError(
                        "unknown_backend", "{message}", {"message": str(error), "error": error}
                    ) from error
                return target.model_validate(value, context=info.context)
        if registry is not None:
            return handler(value)
        with refusing():
            return handler(value)


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
    problems: dict[str, list[Any]] = {}  # those of one place are the kinds that a field may have
    for each in error.errors(include_url=False):
        parts = [prefix, *(str(part) for part in each["loc"] if not _UNION_TAG.search(str(part)))]
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
        problems.setdefault(path, []).append(each)
    return ConfigError.of_all(
        [ConfigError(_explained(each), path=path, source=source) for path, each in problems.items()]
    )


#: what pydantic adds to the path of an error in a union: a type, and no key of a config
_UNION_TAG = re.compile(r"[\[(]|^(int|float|str|bool|none|bytes|callable)$|\w(Config|Model)$")

#: what is wanted, by the type of pydantic's error; its first word does where it is not here
_WANTED = {
    "bool": "true or false",
    "byte": "a number of bytes, as 500000 or '500MB'",
    "callable": "a function",
    "dict": "a mapping",
    "finite_number": "a finite number",
    "float": "a number",
    "greater_than": "{number} greater than {gt}",
    "greater_than_equal": "{number} of at least {ge}",
    "int": "a whole number",
    "less_than": "{number} less than {lt}",
    "less_than_equal": "{number} of at most {le}",
    "list": "a list",
    "literal_error": "one of {expected}",
    "mapping": "a mapping",
    "missing": "it is required",
    "model": "a mapping",
    "path": "a path",
    "string": "text",
    "string_too_short": "text of at least {min_length} character(s)",
    "too_short": "a list of at least {min_length}",
    "tuple": "a list",
    "value_error": "{error}",
}


def _explained(problems: list[Any]) -> str:
    first = problems[0]
    kind, name, given = first["type"], str(first["loc"][-1] if first["loc"] else ""), first["input"]
    secret = _secrets.intersection(map(str, first["loc"])) or _holds_secret(given)
    if kind == "frozen_instance":
        value = "..." if secret or given is None else repr(given)
        another = f"config.model_copy(update={{{name!r}: {value}}})"
        return f"a config cannot be changed: make another, as {another}"
    wanted = " or ".join(dict.fromkeys(map(_wanted, problems)))
    if kind in ("unknown_key", "unknown_backend", "missing"):
        return wanted
    if secret:
        return f"{wanted}; the value is not shown, as it may be a secret"
    return f"{wanted}, not {shown(given)}"


def _wanted(problem: Any) -> str:
    kind, facts = problem["type"], {**problem.get("ctx", {})}
    template = _WANTED.get(kind, _WANTED.get(kind.partition("_")[0]))
    if template is None:
        message: str = problem["msg"]
        return message.removeprefix("Input should be ")
    limit = next(iter(facts.values()), None)
    if kind == "literal_error" and " or " not in facts["expected"]:
        return str(facts["expected"])
    facts["number"] = "a whole number" if isinstance(limit, int) else "a number"
    return template.format(**{key: _short(each) for key, each in facts.items()})


def _short(value: object) -> object:
    return f"{value:g}" if isinstance(value, float) else value


def shown(value: object) -> str:
    """Return *value* for a message: a class or a function by its name, what is long shortened."""
    if isinstance(value, type) or (callable(value) and hasattr(value, "__name__")):
        return str(getattr(value, "__name__", value))
    return _repr.repr(value)


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


def _holds_secret(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(_secrets.intersection(map(str, value))) or any(
            map(_holds_secret, value.values())
        )
    return isinstance(value, list | tuple) and any(map(_holds_secret, value))
