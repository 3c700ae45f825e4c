"""``pparallel schema``: the JSON Schema of a config, with what is installed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
import yaml
from pydantic import Field, SecretStr
from warm_interpreter import WarmInterpreter

import pparallel_local
import pparallel_serializers
from pparallel.cli.schema.attributes import descriptions, summary
from pparallel.cli.schema.generator import job_schema
from pparallel.interfaces.pool import PoolConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.plugin import Backend, hookimpl
from pparallel.registry import INTERFACES, Registry, default_registry
from pparallel_local import ThreadPoolConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*/*.yaml"))


class Opaque:
    pass


class ShelfPoolConfig(PoolConfig, frozen=True):
    """Tasks on :class:`a.b.Shelf`.

    More of it.

    Attributes:
        backend: ``shelf``.
        depth: how deep it is,
            as a number.
        key: of the shop.
        keys: of all shops.
        serializer: its own.
        opaque: what no file holds.
    """

    backend: Literal["shelf"] = "shelf"
    depth: Annotated[int, Field(ge=1, le=9)] = 3
    key: SecretStr = SecretStr("hunter2")
    keys: dict[str, SecretStr] = Field(default={"a": SecretStr("hunter3")})
    serializer: SerializerConfig | None = None
    opaque: Opaque | None = None


class Plugin:
    @hookimpl
    def pparallel_backends(self) -> list[Backend]:
        config = f"{__name__}:ShelfPoolConfig"
        return [Backend("pool", "shelf", config=config, target="shelf:Pool")]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return job_schema(default_registry())


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    """What checks configs only: to check the schema each time would take longer by far."""
    return jsonschema.Draft202012Validator(schema)


def accepts(schema: dict[str, Any], config: object) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(config)


def yaml_blocks() -> list[Any]:
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)
        for number, text in enumerate(blocks, start=1):
            found.append(pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}"))
    return found


# -- what is right --------------------------------------------------------------------------------


def test_the_schema_is_one(schema: dict[str, Any]) -> None:
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_example_is_accepted(validator: jsonschema.Draft202012Validator, path: Path) -> None:
    validator.validate(yaml.safe_load(path.read_text()))
    assert EXAMPLES


@pytest.mark.parametrize("text", yaml_blocks())
def test_every_config_in_the_docs_is_accepted(
    validator: jsonschema.Draft202012Validator, text: str
) -> None:
    config = yaml.safe_load(text)
    validator.validate(config)
    assert isinstance(config, dict)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"members": 3},
        {"members": "auto"},
        {"members": {"ps": 1, "worker": 2}},
        {"members": ["a", {"name": "b", "override": {"pool": 2, "serializer": "pickle"}}]},
        {"launcher": "process", "pool": 4},
        {"pool": "process"},
        {"ordered_server": {"backend": "hosted", "serializer": "pickle"}},
        {"members": ["a", {"name": "b", "override": {"pool": {"size": 2}, "close_timeout": 3}}]},
        {"pool": {"size": 2}},
        {"pool": {"backend": "serial", "size": 2}},
        {"pool": None},
        {"ordered_server": {"backend": "hosted", "host": "a", "serializer": {"recurse": True}}},
        {"ordered_server": {"backend": "hosted", "serializer": {"backend": "pickle"}}},
        {"extra": {"critic": {"interface": "pool", "size": 2}}},
        {"extra": {"critic": {"interface": "pool", "backend": "serial"}}},
        {"args": [1, "a"]},
        {"args": {"steps": 3}},
    ],
)
def test_what_is_accepted(schema: dict[str, Any], config: dict[str, Any]) -> None:
    assert accepts(schema, config)


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"poool": {}},
        {"members": 0},
        {"members": []},
        {"members": "many"},
        {"members": {"ps": 0}},
        {"members": {"ps": "one"}},
        {"members": {}},
        {"launcher": 4},
        {"launcher": "proces"},
        {"pool": 0},
        {"pool": "ipc"},
        {"ordered_server": {"backend": "hosted", "serializer": "pikle"}},
        {"ordered_server": {"backend": "hosted", "serializer": 3}},
        {"members": [{"env": {}}]},
        {"members": [{"name": "a", "override": {"poool": {}}}]},
        {"members": [{"name": "a", "override": {"seed": 3}}]},
        {"members": [{"name": "a", "override": {"launcher": {"backend": "thread"}}}]},
        {"extra": {"other": {"interface": "transport"}}},
        {"seed": "seven"},
        {"close_timeout": 0},
        {"target": 3},
        {"pool": {"sise": 2}},
        {"pool": {"size": "two"}},
        {"pool": {"size": 0}},
        {"pool": {"backend": "thred"}},
        {"pool": {"backend": 3}},
        {"pool": []},
        {"ordered_server": {"host": "a"}},  # of the backend that is not the default's
        {"ordered_server": {"backend": "hosted", "serializer": {"backend": "pikle"}}},
        {"ordered_server": {"backend": "hosted", "serializer": {"recurse": "yes, please"}}},
        {"ordered_server": {"backend": "hosted", "serializer": {"backend": "thread"}}},
        {"extra": {"critic": {"backend": "thread"}}},
        {"extra": {"critic": {"interface": "poool"}}},
        {"extra": {"critic": {"interface": "pool", "sise": 3}}},
        {"extra": {"pool": {"interface": "pool"}}},
        {"args": 3},
    ],
)
def test_what_is_refused(schema: dict[str, Any], config: dict[str, Any]) -> None:
    assert not accepts(schema, config)


# -- what it says ---------------------------------------------------------------------------------


def test_there_is_a_branch_for_each_backend(schema: dict[str, Any]) -> None:
    titles = {each.get("title") for each in schema["$defs"].values()}
    for offer in default_registry().offers():
        assert f"{offer.interface} {offer.name}" in titles
        config = default_registry().config(offer.interface, offer.name)
        branch = next(
            each
            for name, each in schema["$defs"].items()
            if each.get("title") == f"{offer.interface} {offer.name}"
            and not name.startswith("extra.")
        )
        assert set(branch["properties"]) == set(config.model_fields)
        assert all(each["description"] for each in branch["properties"].values())


def test_every_section_is_described(schema: dict[str, Any]) -> None:
    assert set(INTERFACES) < set(schema["properties"])
    assert all(each["description"] for each in schema["properties"].values())


def test_an_interface_without_backends_takes_none() -> None:
    registry = Registry(pparallel_local, pparallel_serializers, entry_points=False)
    schema = job_schema(registry)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert accepts(schema, {"reducer": None})
    assert not accepts(schema, {"reducer": {}})


def test_a_plugin_is_in_it_with_all_that_its_config_says() -> None:
    schema = job_schema(Registry(Plugin()))
    jsonschema.Draft202012Validator.check_schema(schema)
    branch = schema["$defs"]["ShelfPoolConfig"]
    depth = {"default": 3, "description": "how deep it is, as a number.", "type": "integer"}
    assert branch["properties"]["depth"] == {**depth, "minimum": 1, "maximum": 9}
    assert branch["description"] == "Tasks on `a.b.Shelf`.\n\nMore of it."
    assert accepts(schema, {"pool": {"backend": "shelf", "depth": 9, "opaque": None}})
    assert not accepts(schema, {"pool": {"backend": "shelf", "depth": 10}})
    assert not accepts(schema, {"pool": {"depth": 3}})
    nested = {"backend": "shelf", "serializer": {"backend": "pickle"}}
    assert accepts(schema, {"extra": {"side": {"interface": "pool", **nested}}})


def test_secrets_have_no_default() -> None:
    schema = job_schema(Registry(Plugin()))
    properties = schema["$defs"]["ShelfPoolConfig"]["properties"]
    assert "default" not in properties["key"]
    assert "default" not in properties["keys"]
    assert "hunter" not in json.dumps(schema)


def test_what_docstrings_say_of_fields() -> None:
    found = descriptions(ThreadPoolConfig)
    assert set(ThreadPoolConfig.model_fields) <= set(found)
    assert found["size"] == descriptions(PoolConfig)["size"]
    assert descriptions(ShelfPoolConfig)["backend"] == "`shelf`."
    assert summary(ShelfPoolConfig).startswith("Tasks on")
    assert descriptions(Opaque) == {}
    assert summary(Opaque) == ""


# -- the command ----------------------------------------------------------------------------------

SHELF = """\
from typing import Literal
from pparallel.interfaces.pool import PoolConfig
from pparallel.plugin import Backend, hookimpl

class PlankPoolConfig(PoolConfig, frozen=True):
    backend: Literal["plank"] = "plank"
    planks: int = 7

@hookimpl
def pparallel_backends():
    return [Backend("pool", "plank", config=f"{__name__}:PlankPoolConfig",
                    target="plank_plugin:PlankPool", requires=("nobody_has_it",))]
"""


def install(folder: Path, name: str, code: str) -> None:
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[pparallel]\n{name} = {name}_plugin\n")
    (folder / f"{name}_plugin.py").write_text(code)


def test_the_command_prints_it_with_installed_plugins(
    tmp_path: Path, warm: WarmInterpreter
) -> None:
    install(tmp_path, "plank", SHELF)
    install(tmp_path, "crash", "raise OSError('no disk')\n")
    done = warm.pparallel(tmp_path, "schema", "--indent", "0", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    schema = json.loads(done.stdout)
    assert accepts(schema, {"pool": {"backend": "plank", "planks": 3}})
    assert not accepts(schema, {"pool": {"backend": "plank", "plonks": 3}})


def test_it_is_indented(tmp_path: Path, schema: dict[str, Any], warm: WarmInterpreter) -> None:
    done = warm.pparallel(tmp_path, "schema")
    assert done.stdout == json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def test_a_broken_plugin_can_be_made_fatal(tmp_path: Path, warm: WarmInterpreter) -> None:
    install(tmp_path, "crash", "raise OSError('no disk')\n")
    done = warm.pparallel(
        tmp_path, "schema", PYTHONPATH=str(tmp_path), PPARALLEL_STRICT_PLUGINS="1"
    )
    assert done.returncode == 2
    assert "no disk" in done.stderr
    assert "Traceback" not in done.stderr
