from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from pparallel import load
from pparallel.builder.sources import read
from pparallel.errors import ConfigError

EXPECTED = {"members": 2, "pool": {"size": 4, "rate": 0.001}, "args": [1, {"a": None}]}
SAME = {
    "job.yaml": "members: 2\npool: {size: 4, rate: 1e-3}\nargs: [1, {a: null}]\n",
    "job.yml": "args: [1, {a: }]\nmembers: 2\npool:\n  size: 4\n  rate: 1.0e-3\n",
    "job.json": '{"members": 2, "pool": {"size": 4, "rate": 1e-3}, "args": [1, {"a": null}]}',
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("PPARALLEL__"):
            monkeypatch.delenv(variable)


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("name", SAME)
def test_files_of_every_kind(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, SAME[name])
    assert read(path) == (EXPECTED, str(path))
    assert read(str(path)) == (EXPECTED, str(path))


def test_toml(tmp_path: Path) -> None:
    path = written(tmp_path, "job.TOML", "members = 2\n[pool]\nsize = 4\nrate = 1e-3\n")
    assert read(path)[0] == {"members": 2, "pool": {"size": 4, "rate": 0.001}}


def test_nothing_and_mappings() -> None:
    assert read(None) == ({}, "")
    assert read({}) == ({}, "")
    assert read(EXPECTED) == (EXPECTED, "")


def test_what_was_given_is_not_changed() -> None:
    given: dict[str, Any] = {"pool": {"size": 1}, "members": [{"name": "a"}], "args": (1, 2)}
    raw, _ = read(given, ["pool.size=2", "members.0.name=b", "args.1=3"])
    assert raw == {"pool": {"size": 2}, "members": [{"name": "b"}], "args": [1, 3]}
    assert given == {"pool": {"size": 1}, "members": [{"name": "a"}], "args": (1, 2)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-2E6", -2e6),
        ("1_000e2", 1e5),
        ("1.5", 1.5),
        ("12", 12),
        ("e3", "e3"),
        ("'1e3'", "1e3"),
        ("1e", "1e"),
        ("true", True),
        ("~", None),
    ],
)
def test_yaml_values(tmp_path: Path, text: str, value: object) -> None:
    raw, _ = read(written(tmp_path, "job.yaml", f"value: {text}"))
    assert raw == {"value": value}
    assert type(raw["value"]) is type(value)


def test_yaml_merge_keys_are_no_duplicates(tmp_path: Path) -> None:
    text = (
        "extra:\n  deep: {base: &base {size: 1, retries: 2}}\n"
        "pool: &pool\n  <<: *base\n  size: 3\nother:\n  <<: *pool\n  size: 4\n"
    )
    raw, _ = read(written(tmp_path, "job.yaml", text))
    assert raw["pool"] == {"size": 3, "retries": 2}
    assert raw["other"] == {"size": 4, "retries": 2}
    assert raw["extra"]["deep"]["base"] == {"size": 1, "retries": 2}


BAD_FILES = [
    ("job.yaml", "", "it is empty"),
    ("job.yaml", "# nothing\n", "it is empty"),
    ("job.json", " \n", "it is empty"),
    ("job.toml", "", "it is empty"),
    ("job.yaml", "- a\n- b\n", "a config is a mapping of sections, not a list"),
    ("job.yaml", "just words", "not text"),
    ("job.json", "3", "not a number"),
    ("job.ini", "[pool]", r"unknown kind of file '\.ini'; .* \.yaml, \.yml, \.toml, \.json"),
    ("job", "a: 1", "unknown kind of file ''"),
    ("job.yaml", b"a: \xff\xfe", "not UTF-8 text: byte 3 cannot be decoded"),
    ("job.json", b"\xff", "not UTF-8 text"),
    ("job.yaml", "pool:\n  size: [1\nx: 2\n", r"line 2: '\[' is not closed$"),
    ("job.yaml", "pool: a: b\n", r"line 1, column 8: mapping values are not allowed here"),
    ("job.yaml", "a:\n\tc: d", r"line 2: a tab: indent with spaces"),
    ("job.yaml", "a: *nowhere", "line 1, column 4: found undefined alias"),
    ("job.yaml", "a: !!python/object:os.system {}", "line 1, column 4: could not determine"),
    ("job.yaml", "a: 1\n---\nb: 2\n", "line 2, column 1: "),
    ("job.yaml", "a: \x01", "it is no valid YAML: unacceptable character"),
    ("job.yaml", "a: 2020-99-99", "it is no valid YAML: month must be in"),
    ("job.yaml", "&a a: *a\nb: &b [*b]", "contains itself"),
    ("job.toml", "a = 1\nb = \n", r"no valid TOML: .*line 2, column 5"),
    ("job.toml", "a = 1\na = 2\n", "no valid TOML: Cannot overwrite a value"),
    ("job.json", '{"a": 1,\n "b": }', "line 2, column 7: it is no valid JSON"),
    ("job.json", '{"a": 1, "a": 2}', "key 'a' is given twice"),
    ("job.yaml", "a: 1\nb: 2\na: 3\n", "line 3, column 1: key 'a' is given twice, first in line 1"),
    ("job.yaml", "p: {a: 1, a: 2}", "line 1, column 11: key 'a' is given twice, first in line 1"),
    ("job.yaml", "pool: {1: a}", "pool: key 1 is a number; keys are text: put it in quotes"),
    ("job.yaml", "on: 1", "key True is a truth value"),
    ("job.yaml", "? [a]\n: 1", "line 1, column 3: found unhashable key"),
]


@pytest.mark.parametrize(
    ("name", "content", "message"), BAD_FILES, ids=[f"{each[0]}-{each[1]!r}" for each in BAD_FILES]
)
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(ConfigError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.source == str(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: there is no such file"):
        read(tmp_path / "absent.yaml")
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"folder\.yaml: it is a directory"):
        read(folder)
    with pytest.raises(ConfigError, match="it is a directory"):
        read(tmp_path)
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    with pytest.raises(ConfigError, match=r"loop\.yaml: it cannot be read: Too many levels"):
        read(loop)


def test_overrides_after_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPARALLEL__POOL__SIZE", "8")
    monkeypatch.setenv("PPARALLEL__POOL__BACKEND", "serial")
    monkeypatch.setenv("PPARALLEL__SEED", "3")
    monkeypatch.setenv("PPARALLEL_STRICT_PLUGINS", "1")
    raw, _ = read({"pool": {"size": 1, "retries": 2}}, ["pool.size=9", "target=train:main"])
    assert raw == {
        "pool": {"size": 9, "backend": "serial", "retries": 2},
        "seed": 3,
        "target": "train:main",
    }


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("pool.size=8", {"size": 8}),
        ("pool.size = 8", {"size": 8}),
        ("pool.rate=1e-3", {"rate": 0.001}),
        ("pool.initargs=[1, two]", {"initargs": [1, "two"]}),
        ("pool.serializer={backend: dill}", {"serializer": {"backend": "dill"}}),
        ("pool.serializer.backend=dill", {"serializer": {"backend": "dill"}}),
        ("pool.initializer=a=b", {"initializer": "a=b"}),
        ("pool.size=", {"size": None}),
        ("pool.size='8'", {"size": "8"}),
    ],
)
@pytest.mark.parametrize("given", [{}, {"pool": None}, {"pool": {}}])
def test_overrides_make_the_sections_they_need(
    given: dict[str, Any], override: str, expected: dict[str, Any]
) -> None:
    assert read(given, [override])[0] == {"pool": expected}


def test_overrides_apply_in_order() -> None:
    raw, _ = read(
        None, ["pool={size: 1, retries: 2}", "pool.size=3", "members=[a, b]", "members.1=c"]
    )
    assert raw == {"pool": {"size": 3, "retries": 2}, "members": ["a", "c"]}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pool.size", "write an override as 'section.key=value'"),
        ("=8", "write an override as"),
        ("pool..size=8", "write an override as"),
        (".size=8", "write an override as"),
        ("", "write an override as"),
        ("members.0.name=x", "members.0: there is nothing in it to set: it is text"),
        ("seed.x=1", "seed: there is nothing in it to set: it is a number"),
        ("members.first=x", "members: it is a list; name one of its items by number, not 'first'"),
        ("members.-1=x", "members: it is a list"),
        ("members.2=x", "members: it has 2 items, numbered from 0, and no item 2"),
        ("pool.size=[1", "line 1, column 3: "),
    ],
)
def test_bad_overrides(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read({"members": ["a", "b"], "seed": 3}, [override])
    assert caught.value.source == repr(override.partition("=")[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool: {size: 2", "line 1, column 15: expected ',' or '}', but got '<stream end>'"),
        ("a: *hush", "line 1, column 4: found undefined alias '...'"),
        ("a: !hu'sh x", "could not determine a constructor for the tag '...'"),
        ("!hu'sh'hush x", "could not determine a constructor for the tag '...'"),
    ],
)
def test_only_the_content_is_masked(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message) + "$") as caught:
        read(written(tmp_path, "job.yaml", text))
    assert not re.search("hu.?sh", str(caught.value))


def test_a_folder_is_relative_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "sub", "job.yaml", "directory: mods")
    for source in (path, "sub/job.yaml"):
        assert load(source).directory == tmp_path / "sub" / "mods"
        assert load(source, overrides=["directory=mods"]).directory == Path("mods")
    path.write_text(f"directory: {tmp_path}")
    assert load(path).directory == tmp_path
    assert load({"directory": "mods"}).directory == Path("mods")


def test_bad_overrides_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPARALLEL__SEED__X", "1")
    with pytest.raises(ConfigError, match="PPARALLEL__SEED__X: seed: there is nothing in it"):
        read({"seed": 3})
    monkeypatch.delenv("PPARALLEL__SEED__X")
    monkeypatch.setenv("PPARALLEL__POOL____SIZE", "1")
    with pytest.raises(ConfigError, match=r"PPARALLEL__POOL____SIZE: .*PPARALLEL__SECTION__KEY"):
        read({})


def test_bad_mappings() -> None:
    with pytest.raises(ConfigError, match="key 3 is a number"):
        read({3: {}})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"extra\.a\.0: key None is nothing; keys are text"):
        read({"extra": {"a": [{None: 1}]}})
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(ConfigError, match="contains itself"):
        read(endless)


def test_typed_configs_inside_a_mapping_take_no_overrides() -> None:
    marker = object()
    assert read({"pool": marker})[0]["pool"] is marker
    with pytest.raises(ConfigError, match="pool: there is nothing in it to set: it is a object"):
        read({"pool": marker}, ["pool.size=1"])


def test_a_file_may_name_its_schema(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text('{"$schema": "pparallel.schema.json", "members": 2}')
    assert read(file)[0] == {"members": 2}
