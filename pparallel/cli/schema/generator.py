"""The JSON Schema of a job's config, with the backends that plugins offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import override

from pparallel.builder.runtime_config import OVERRIDES, RuntimeConfig
from pparallel.cli.schema.attributes import descriptions, summary
from pparallel.config import BackendConfig, Config
from pparallel.registry import INTERFACES, Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Branches = Mapping[str, Mapping[str, type[BackendConfig[Any]]]]


def job_schema(registry: Registry) -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) that configs of jobs fulfil.

    It is stricter than :func:`pparallel.load` in that values are of the type that is wanted, not
    one that can be made into it.
    """
    branches = _branches(registry)
    fields = {"registry": registry, "branches": branches, "under_way": []}
    generator = type("Generator", (_Generator,), fields)
    generated = RuntimeConfig.model_json_schema(
        schema_generator=generator, ref_template="#/$defs/{model}"
    )
    definitions = generated.setdefault("$defs", {})
    properties = generated["properties"]
    properties["extra"] = {**properties["extra"], **_extra(branches, definitions)}
    properties["members"] = _members(properties)
    properties["$schema"] = {"type": "string", "description": "This schema, for editors."}
    override = definitions["MemberConfig"]["properties"]["override"]
    override.update(_override(properties))
    heading = {"$schema": DIALECT, "title": "A pparallel job"}
    return {**heading, **{key: each for key, each in generated.items() if key not in heading}}


def _branches(registry: Registry) -> Branches:
    found: dict[str, dict[str, type[BackendConfig[Any]]]] = {name: {} for name in INTERFACES}
    for offer in registry.offers():
        if offer.status != "broken":
            config = registry.config(offer.interface, offer.name)
            found[offer.interface][offer.name] = config
    return found


class _Generator(GenerateJsonSchema):
    """Knows what a section can be; pydantic makes the instance, so its facts are of the class.

    Attributes:
        registry: tells which backend is the default.
        branches: the configs of each interface, by backend.
        under_way: the interfaces whose sections are being described.
    """

    registry: ClassVar[Registry]
    branches: ClassVar[Branches]
    under_way: ClassVar[list[str]]

    @override
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        cls: type[Any] = schema["cls"]
        interface = getattr(cls, "interface", None)
        if interface is not None and cls is INTERFACES.get(interface):
            return self._section(interface)
        described = super().model_schema(schema)
        if issubclass(cls, Config):
            _describe(cls, described)
        if interface is not None:
            _name(cls, described, self.registry.default(interface))
        return described

    def _section(self, interface: str) -> JsonSchemaValue:
        configs = self.branches[interface].values()
        if not configs:
            return {"not": {}, "description": f"No {interface} backend is installed."}
        if interface in self.under_way:  # a backend that holds another of its kind
            return {"description": summary(INTERFACES[interface])}
        self.under_way.append(interface)
        inner = [self.generate_inner(each.__pydantic_core_schema__) for each in configs]
        self.under_way.remove(interface)
        choices = [{"enum": list(self.branches[interface])}, *_short(INTERFACES[interface]), *inner]
        return {"oneOf": choices, "description": summary(INTERFACES[interface])}

    @override
    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        if _is_secret(described):
            described.pop("default", None)
        return described

    @override
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    @override
    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}  # a field for objects that no file can hold: the loader tells

    @override
    def emit_warning(self, kind: Any, detail: str) -> None:
        """Leave out without a word a default that no file can hold."""


def _describe(cls: type[Config], schema: JsonSchemaValue) -> None:
    """Give a config and its fields the words of its docstring."""
    schema["description"] = summary(cls)
    known = descriptions(cls)
    for name, each in schema.get("properties", {}).items():
        if name in known:
            each.setdefault("description", known[name])


def _name(cls: type[BackendConfig[Any]], schema: JsonSchemaValue, default: str) -> None:
    """Have the schema of a backend's config hold for that backend alone."""
    name = cls.model_fields["backend"].default
    schema["title"] = f"{cls.interface} {name}"
    schema["properties"]["backend"] = {
        "const": name,
        "description": f"Selects this backend{', the default' if name == default else ''}.",
    }
    if name == default:
        schema["properties"]["backend"]["default"] = name
    else:
        schema["required"] = ["backend", *schema.get("required", [])]


def _short(base: type[BackendConfig[Any]]) -> list[dict[str, Any]]:
    """Return what a number in place of a section may be; nothing where it stands for no option."""
    if not base.short:
        return []
    field = base.model_fields[base.short]
    kind: Any = Annotated[field.annotation, field]
    described = TypeAdapter(kind).json_schema()
    numbers = [each for each in described.get("anyOf", [described]) if each["type"] != "null"]
    return [{**each, "description": f"The option `{base.short}`."} for each in numbers]


def _is_secret(schema: object) -> bool:
    if isinstance(schema, Mapping):
        return bool(schema.get("writeOnly")) or any(map(_is_secret, schema.values()))
    return isinstance(schema, list) and any(map(_is_secret, schema))


def _extra(branches: Branches, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return what ``extra`` holds: components of any interface, each naming its own."""
    choices = []
    for interface, configs in branches.items():
        for name in configs if interface != "transport" else ():  # a job has one
            title = f"{interface} {name}"
            key, plain = next((k, d) for k, d in definitions.items() if d.get("title") == title)
            named = {"const": interface, "description": "The interface that it fills."}
            definitions[f"extra.{key}"] = {
                **plain,
                "properties": {"interface": named, **plain["properties"]},
                "required": ["interface", *plain.get("required", [])],
            }
            choices.append({"$ref": f"#/$defs/extra.{key}"})
    reserved = {"not": {"enum": list(INTERFACES)}}
    return {"propertyNames": reserved, "additionalProperties": {"oneOf": choices}}


def _members(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``members`` may be; a name alone stands for a member, a number for several."""
    names = {"anyOf": [{"type": "string", "minLength": 1}, {"$ref": "#/$defs/MemberConfig"}]}
    given = properties["members"]
    return {
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {"type": "array", "items": names, "minItems": 1},
            {
                "type": "object",
                "additionalProperties": {"type": "integer", "minimum": 1},
                "minProperties": 1,
            },
            {"const": "auto"},
        ],
        **{key: given[key] for key in ("default", "description") if key in given},
    }


def _override(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a member may override: parts of sections, and other keys as they are."""
    sections = {
        name: {"type": ["object", "string", "null", *(["integer"] if base.short else [])]}
        for name, base in INTERFACES.items()
        if name in OVERRIDES
    }
    others = {name: {"$ref": f"#/properties/{name}"} for name in OVERRIDES if name not in sections}
    return {"properties": {**sections, **others}, "additionalProperties": False}
