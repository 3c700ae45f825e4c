"""The forms in which people write configs: they work, or the message says what to write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import SecretStr

import pparallel
from pparallel.builder.blueprint import Blueprint
from pparallel.builder.runtime_config import OVERRIDES
from pparallel.config import BackendConfig, Config
from pparallel.errors import ConfigError
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.plugin import Backend, hookimpl
from pparallel.registry import INTERFACES, Registry, default_registry
from pparallel_local import LocalTransportConfig, ThreadPoolConfig
from pparallel_local.thread_pool import ThreadPool
from pparallel_process import P2PPoolConfig, ProcessLauncherConfig, ProcessPoolConfig
from pparallel_serializers import DillSerializerConfig, PickleSerializerConfig
from pparallel_servers import HostedOrderedServerConfig

build, launch, load = pparallel.build, pparallel.launch, pparallel.load
Form = Callable[[], Any]


def untyped(cls: Any) -> Any:
    return cls


def name(rt: pparallel.Runtime) -> str:
    return rt.name


def nothing() -> None:
    raise AssertionError("never run")


def without_a_runtime(first: int, second: int, third: int) -> None:
    raise AssertionError("never run")


async def later(rt: pparallel.Runtime) -> None:
    raise AssertionError("never run")


def overridden(section: object, *, job: object) -> Any:
    members = [{"name": "a", "override": {"pool": section}}, "b"]
    return load({"members": members, "pool": job}).of_member("a").pool


def opened(pool: Any, call: Callable[[Any], Any]) -> Any:
    with pool:
        return call(pool)


def both(rt: pparallel.Runtime) -> tuple[str, int]:
    return rt.name, rt.pool.size()


#: a form, and what comes of it
ACCEPTED: list[tuple[str, Form, Any]] = [
    ("launcher: process", lambda: load({"launcher": "process"}).launcher, ProcessLauncherConfig()),
    ("pool: process", lambda: load({"pool": "process"}).pool, ProcessPoolConfig()),
    ("pool: pool:process", lambda: load({"pool": "pool:process"}).pool, ProcessPoolConfig()),
    ("RuntimeConfig", lambda: pparallel.RuntimeConfig(pool="p2p").pool, P2PPoolConfig()),
    ("pool: 4", lambda: load({"pool": 4}).pool, ThreadPoolConfig(size=4)),
    (
        "a nested part",
        lambda: load({"ordered_server": {"backend": "hosted", "serializer": "pickle"}}),
        {"ordered_server": HostedOrderedServerConfig(serializer=PickleSerializerConfig())},
    ),
    (
        "a part of a typed config",
        lambda: ProcessPoolConfig(serializer="pickle").serializer.backend,  # type: ignore[union-attr]
        "pickle",
    ),
    (
        "extra",
        lambda: load({"extra": {"x": {"interface": "pool", "backend": "process"}}}).extra["x"],
        ProcessPoolConfig(),
    ),
    (
        "members: {ps: 1, worker: 2}",
        lambda: load({"members": {"ps": 1, "worker": 2}}).names,
        ["ps", "worker-0", "worker-1"],
    ),
    ("members by text", lambda: load(overrides=["members={a: 2}"]).names, ["a-0", "a-1"]),
    ("members.ps by override", lambda: load(overrides=["members.ps=2"]).names, ["ps-0", "ps-1"]),
    ("args: (1, 2)", lambda: load({"args": (1, 2)}).args, [1, 2]),
    ("args: {a: 1}", lambda: load({"args": {"a": 1}}).args, {"a": 1}),
    (
        "overrides: a mapping",
        lambda: load({}, overrides={"pool.size": 2, "pool.backend": "process"}).pool,
        ProcessPoolConfig(size=2),
    ),
    (
        "an override of a name",
        lambda: load({"pool": "process"}, overrides=["pool.size=2"]).pool,
        ProcessPoolConfig(size=2),
    ),
    (
        "an override of a number",
        lambda: load({"pool": 3}, overrides=["pool.backend=process"]).pool,
        ProcessPoolConfig(size=3),
    ),
    (
        "--set launcher=process",
        lambda: load({}, overrides=["launcher=process"]).launcher,
        ProcessLauncherConfig(),
    ),
    ("a member's number", lambda: overridden(3, job="process"), ProcessPoolConfig(size=3)),
    ("a member's name", lambda: overridden("process", job=3), ProcessPoolConfig()),
    ("a number of members", lambda: load(2).names, ["member-0", "member-1"]),
    ("PoolConfig", lambda: PoolConfig(size=2).backend, "thread"),
    ("TransportConfig", lambda: pparallel.TransportConfig().backend, "local"),
    ("build(PoolConfig)", lambda: opened(build(PoolConfig(size=2)), lambda p: p.size()), 2),
    ("build(thread)", lambda: opened(build("thread", size=3), lambda p: p.size()), 3),
    ("build(pool:thread)", lambda: type(build("pool:thread")), ThreadPool),
    ("build(process)", lambda: type(build("process")).__name__, "ProcessPool"),
    ("build(torchrun)", lambda: type(build("torchrun")).__name__, "TorchrunLauncher"),
    (
        "build with a part by name",
        lambda: opened(build("process", size=1, serializer="pickle"), lambda p: p.map(abs, [-1])),
        [1],
    ),
    (
        "build a config with a part by name",
        lambda: opened(
            build(ProcessPoolConfig(size=1), serializer="pickle"), lambda p: p.map(abs, [-1])
        ),
        [1],
    ),
    (
        "build a config with a config",
        lambda: opened(
            build(ProcessPoolConfig(size=1), serializer=DillSerializerConfig()),
            lambda p: p.map(abs, [-1]),
        ),
        [1],
    ),
    (
        "build by name with a ready part",
        lambda: opened(
            build("process", size=1, serializer=build("pickle")), lambda p: p.map(abs, [-1])
        ),
        [1],
    ),
    ("build(pool=)", lambda: build(pool="process").config.pool, ProcessPoolConfig()),
    ("build(members=1)", lambda: build(members=["a"], seed=3).config.seed, 3),
    ("build({}, pool=)", lambda: build({"pool": 2}, pool=4).config.pool, ThreadPoolConfig(size=4)),
    ("launch(2, f)", lambda: launch(2, name), ["member-0", "member-1"]),
    (
        "launch by keys",
        lambda: launch(target=both, members={"a": 1, "b": 1}, pool=2),
        [("a", 2), ("b", 2)],
    ),
]

#: a form, and the message
REFUSED: list[tuple[str, Form, str]] = [
    ("pool: thred", lambda: load({"pool": "thred"}), r"^pool\.backend: .*mean 'thread'\?$"),
    ("pool: 0", lambda: load({"pool": 0}), r"^pool\.size: a whole number of at least 1, not 0$"),
    ("pool: []", lambda: load({"pool": []}), r"^pool: the name of a backend, a number \(size\),"),
    ("pool: true", lambda: load({"pool": True}), r"^pool: the name of a backend, .*, not True$"),
    ("pool: Pool", lambda: load({"pool": Pool}), r"^pool: the name of a backend, .*, not Pool$"),
    (
        "launcher: 4",
        lambda: load({"launcher": 4}),
        r"^launcher: the name of a backend, or a mapping of options, not 4$",
    ),
    ("launcher of a pool", lambda: load({"pool": ProcessLauncherConfig()}), r"^pool: the name of"),
    (
        "a nested part",
        lambda: load({"ordered_server": {"backend": "hosted", "serializer": "pikle"}}),
        r"^ordered_server\.serializer\.backend: no serializer backend 'pikle'\..* 'pickle'\?$",
    ),
    (
        "members: [1, null]",
        lambda: load({"members": [1, None]}),
        r"^2 problems:\n  members\.0: a name is text, .*, not 1\n  members\.1: .*, not None$",
    ),
    (
        "members: {ps: 0}",
        lambda: load({"members": {"ps": 0}}),
        r"^members\.ps: the number of members of this kind, at least 1, not 0$",
    ),
    ("members: {ps: x}", lambda: load({"members": {"ps": "x"}}), r"^members\.ps: .*, not 'x'$"),
    ("members: {}", lambda: load({"members": {}}), r"^members: a job has at least one member"),
    (
        "members: {a: 2, a-0: 1}",
        lambda: load({"members": {"a": 2, "a-0": 1}}),
        r"^members: the name 'a-0' is given to two members",
    ),
    ("members: 1.5", lambda: load({"members": 1.5}), r"^members: give a number, .*, not 1\.5$"),
    ("args: x", lambda: load({"args": "x"}), r"^args: a list or a mapping, not 'x'$"),
    ("extra: {x: pool}", lambda: load({"extra": {"x": "pool"}}), r"^extra\.x: a mapping, as \{in"),
    (
        "extra of a strange interface",
        lambda: load({"extra": {"x": {"interface": "pol"}}}),
        r"^extra\.x: interface 'pol' does not exist\. Did you mean 'pool'\?",
    ),
    (
        "backend beside the sections",
        lambda: build({"size": 2, "backend": "process"}),
        r'write \{"pool": \{"backend": "process"\}\} or build\("pool:process"\)$',
    ),
    ("backend: ipc", lambda: load({"backend": "ipc"}), r'build\("transport:ipc"\)$'),
    *(
        (
            f"{key} of a pool",
            lambda key=key: load({"pool": {key: 2}}),
            rf"^pool\.{key}: '{key}' is called 'size' here$",
        )
        for key in ("processes", "workers", "num_workers", "max_workers", "n_jobs", "nprocs")
    ),
    *(
        (
            f"{key} of a pool",
            lambda key=key: ProcessPoolConfig(**{key: 2}),
            rf"^{key}: '{key}' is called '{here}' here$",
        )
        for key, here in {
            "type": "backend",
            "name": "backend",
            "kind": "backend",
            "maxtasksperchild": "max_tasks",
            "timeout": "task_timeout",
            "mp_context": "start_method",
        }.items()
    ),
    (
        "an option of other pools",
        lambda: build("thread", maxtasksperchild=1),
        r"is called 'max_tasks' here, and backend 'thread' has no such option$",
    ),
    *(
        (
            f"{key} of a job",
            lambda key=key: load({key: 2}),
            rf"^{key}: '{key}' is called '{here}' here$",
        )
        for key, here in {
            "world_size": "members",
            "nprocs": "members",
            "server": "ordered_server",
        }.items()
    ),
    ("pol", lambda: load({"pol": 1}), r"^pol: unknown key 'pol'\. Did you mean 'pool'\?$"),
    ("zzz", lambda: load({"zzz": 1}), r"^zzz: unknown key 'zzz'; allowed: args, .*, transport$"),
    (
        "an override",
        lambda: load({"members": [{"name": "a", "override": {"pol": 1}}]}),
        r"^members\.a\.override\.pol: unknown key 'pol'\. Did you mean 'pool'\?$",
    ),
    ("seed: x", lambda: load({"seed": "x"}), r"^seed: a whole number, not 'x'$"),
    ("seed: 1.5", lambda: load({"seed": 1.5}), r"^seed: a whole number, not 1\.5$"),
    (
        "close_timeout: 0",
        lambda: load({"close_timeout": 0}),
        r"^close_timeout: a number greater than 0, not 0$",
    ),
    ("target: 3", lambda: load({"target": 3}), r"^target: text, not 3$"),
    ("directory: 3", lambda: load({"directory": 3}), r"^directory: a path, not 3$"),
    ("extra: 3", lambda: load({"extra": 3}), r"^extra: a mapping, not 3$"),
    (
        "a choice",
        lambda: ProcessPoolConfig(start_method="fok"),
        r"^start_method: one of 'forkserver', 'spawn' or 'fork', not 'fok'$",
    ),
    (
        "another backend",
        lambda: ThreadPoolConfig(backend="process"),
        r"^backend: 'thread', not 'process'$",
    ),
    (
        "bytes",
        lambda: ProcessPoolConfig(max_rss="much"),
        r"^max_rss: a number of bytes, .*, not 'much'$",
    ),
    (
        "one of two kinds",
        lambda: ThreadPoolConfig(initializer=3),
        r"^initializer: a function or text, not 3$",
    ),
    (
        "an environment",
        lambda: load({"members": [{"name": "a", "env": {"A": 1}}]}),
        r"^members\.0\.env\.A: text, not 1$",
    ),
    ("a key", lambda: load({"members": [{}]}), r"^members\.0\.name: it is required$"),
    (
        "ProcessPoolConfig(2)",
        lambda: untyped(ProcessPoolConfig)(2),
        r"^give options by name: ProcessPoolConfig\(size=2\)$",
    ),
    (
        "LocalTransportConfig(2)",
        lambda: untyped(LocalTransportConfig)(2),
        r"^give options by name: LocalTransportConfig\(option=\.\.\.\)$",
    ),
    (
        "config.seed = 3",
        lambda: setattr(pparallel.RuntimeConfig(), "seed", 3),
        r"a config cannot be changed: .* config\.model_copy\(update=\{'seed': 3\}\)$",
    ),
    ("build(ray)", lambda: build("ray"), r'^\'ray\' is a pool, .*: write build\("pool:ray"\)$'),
    ("build(local)", lambda: build("local"), r"^'local' is a collective, a reducer, a transport:"),
    ("build(thred)", lambda: build("thred"), r"^no backend 'thred'\. Did you mean 'thread'\?$"),
    ("build(job)", lambda: build("job"), r"^no backend 'job'\..*; a config file ends in \.yaml, "),
    ("build(pool:x)", lambda: build("pool:ipc"), r"^no pool backend 'ipc'; installed: "),
    ("build(pol:thread)", lambda: build("pol:thread"), r"^no interface 'pol'\. .* 'pool'\?$"),
    ("build(pool)", lambda: build("pool"), r'^Pool is an interface: build\("pool:thread", size=2'),
    ("build(job.yaml)", lambda: build("no_job.yaml"), r"^no_job\.yaml: there is no such file$"),
    ("build(./thread)", lambda: build("./thread"), r"^thread: unknown kind of file ''"),
    ("load(process)", lambda: load("process"), r"^'process' names no file: "),
    ("build(thread, n)", lambda: build("thread", processes=2), r"^processes: .* 'size' here$"),
    ("build(thread, sise)", lambda: build("thread", sise=2), r"^sise: .* Did you mean 'size'\?$"),
    (
        "build(process, serializer=3)",
        lambda: build("process", serializer=3),
        r"^serializer: the name of a backend, or a mapping of options, not 3$",
    ),
    (
        "build(config, serializer=3)",
        lambda: build(ProcessPoolConfig(), serializer=3),
        r"^serializer: a Serializer, the name of a backend, or a config of one, not 3$",
    ),
    (
        "build(config, serializer=dil)",
        lambda: build(ProcessPoolConfig(), serializer="dil"),
        r"^serializer\.backend: no serializer backend 'dil'\. Did you mean 'dill'\?$",
    ),
    (
        "build(Pool)",
        lambda: build(Pool),  # type: ignore[call-overload]
        r'^Pool is an interface: build\("pool:thread", size=2\)$',
    ),
    (
        "Pool(2)",
        lambda: Pool(2),  # type: ignore[abstract,call-arg]
        r'^Pool is an interface: build\("pool:thread", size=2\)$',
    ),
    (
        "build(Reducer)",
        lambda: build(pparallel.Reducer),  # type: ignore[call-overload]
        r'^Reducer is an interface: build\("reducer:grad_server"\)$',
    ),
    (
        "build(ThreadPoolConfig)",
        lambda: build(ThreadPoolConfig),  # type: ignore[call-overload]
        r"^give a config, not its class: ThreadPoolConfig\(\)$",
    ),
    (
        "build(f)",
        lambda: build(nothing),  # type: ignore[call-overload]
        r"^a config is a mapping of sections, not a function$",
    ),
    ("build(members=2)", lambda: build(members=2), r"^members: there are 2 members and nothing"),
    ("build(pol=2)", lambda: build(pol=2), r"^pol: unknown key 'pol'\. Did you mean 'pool'\?$"),
    (
        "build(typed, seed=2)",
        lambda: build(pparallel.RuntimeConfig(), seed=2),
        r"^override 'seed' cannot apply to a typed config",
    ),
    (
        "launch(f)",
        lambda: launch(name),  # type: ignore[arg-type]
        r"^give the members first: launch\(2, name\)$",
    ),
    (
        "launch(f, nprocs=3)",
        lambda: launch(name, nprocs=3),  # type: ignore[arg-type]
        r"^give the members first: launch\(3, name\)$",
    ),
    ("launch(0, f)", lambda: launch(0, name), r"^members: a job has at least one member, not 0$"),
    ("launch(2, f, ab)", lambda: launch(2, name, "ab"), r"^args: .* tuple: \('ab',\), not 'ab'$"),
    (
        "launch(2, f, 1)",
        lambda: launch(2, name, 1),  # type: ignore[arg-type]
        r"^args: .* tuple: \(1,\), not 1$",
    ),
    ("launch(1, async)", lambda: launch(1, later), r"^target: later .* asyncio\.run\(later\(rt\)"),
    (
        "launch(pol=)",
        lambda: launch(2, name, wrld_size=3),
        r"^wrld_size: unknown key 'wrld_size'; allowed: ",
    ),
]


@pytest.mark.parametrize(
    ("form", "result"),
    [each[1:] for each in ACCEPTED],
    ids=[each[0] for each in ACCEPTED],
)
def test_accepted(form: Form, result: object) -> None:
    found = form()
    if isinstance(found, pparallel.RuntimeConfig) and isinstance(result, dict):
        assert {key: getattr(found, key) for key in result} == result
    else:
        assert found == result
        assert type(found) is type(result)


@pytest.mark.parametrize(
    ("form", "message"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_refused(form: Form, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        form()
    said = str(caught.value)
    for inner in ("function-before", "list[", "[type=", "pydantic", "input should", "<class "):
        assert inner not in said.lower()
    assert not re.search(r"\bpparallel(_\w+|\.\w+)\.\w", said), "a class by its path"
    hinted = re.search(r"Did you mean|is called|write |give ", said)
    assert not (hinted and re.search("allowed:|installed:", said))


# -- calls: what they raise is Python's -----------------------------------------------------------


@pytest.mark.parametrize("call", ["map", "imap", "imap_unordered", "starmap", "map_async"])
def test_several_iterables(call: str) -> None:
    message = (
        r"^chunksize is a number, not a list; for several iterables: starmap\(f, zip\(\.\.\.\)\)"
    )
    with build("thread", size=1) as pool, pytest.raises(TypeError, match=message):
        getattr(pool, call)(pow, [(1, 1)], [2])


def test_one_argument() -> None:
    with build("thread", size=1) as pool:
        for call in (pool.apply, pool.apply_async):
            with pytest.raises(TypeError, match=r"^args is a tuple: \(-1,\)$"):
                call(abs, -1)

        def broken() -> Iterator[int]:
            yield 1
            raise TypeError("my own")

        with pytest.raises(TypeError, match="my own"):
            pool.apply(abs, broken())


@pytest.mark.parametrize("members", [1, 2])
def test_a_target_that_takes_no_runtime(members: int) -> None:
    note = "a target takes the runtime first, as def main(rt), and then args"
    for target in (nothing, without_a_runtime):
        with pytest.raises(TypeError, match="argument") as caught:
            launch(members, target)
        assert note in caught.value.__notes__

    def fails(rt: pparallel.Runtime) -> None:
        without_a_runtime(1)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="argument") as caught:
        launch(members, fails)
    assert note not in getattr(caught.value, "__notes__", ())


def test_options_are_no_parts() -> None:
    with pytest.raises(TypeError, match=r"^'size' is an option of the config: ThreadPoolConfig\("):
        build(ThreadPoolConfig(), size=3)


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("members: 1\npool: {size: 2\n", r"line 2: '\{' is not closed$"),
        ("pool: {size: 2\nseed: 3\n", r"line 1: '\{' is not closed$"),
        ("seed: 1\nmembers: [a,\n  b\npool: 2\n", r"line 2: '\[' is not closed$"),
        (
            "members: 2\nlauncher: process\ncollective: local\n",
            r"collective\.backend: 'local' works",
        ),
    ],
)
def test_files(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(path))}: {message}"):
        load(path)


def test_a_file_that_is_called_as_a_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thread.yaml").write_text("seed: 3")
    assert build("thread.yaml").config.seed == 3


def test_the_table_of_defaults() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
    rows = re.findall(
        r"^\| `(\w+)` \| (.*) \|$", page.read_text().partition("## Defaults")[2], re.M
    )
    table = {name: [cell.strip("`") for cell in cells.split(" | ")] for name, cells in rows}
    assert set(table) == set(INTERFACES)
    jobs: list[dict[str, Any]] = [
        {},
        {"members": 2},
        {"members": 2, "launcher": "process"},
        {"members": 2},
    ]
    for column, raw in enumerate(jobs):
        torchrun = column == 3
        blueprint = Blueprint(load(raw), default_registry(), torchrun=torchrun)
        assert blueprint.place == ("alone", "threads", "processes", "machines")[column]
        for section, cells in table.items():
            if section != "launcher" or column < 2:
                assert blueprint.component(section).backend == cells[column]
            if column == 0:
                assert default_registry().default(section) == cells[0]


# -- classes of others ----------------------------------------------------------------------------


class SafeConfig(SerializerConfig, frozen=True):
    backend: str = "strongbox"
    short: ClassVar[str] = "depth"
    synonyms: ClassVar[Mapping[str, str]] = {"level": "depth", "pin": "code"}
    depth: int = 1
    code: SecretStr = SecretStr("")


class Plugin:
    @hookimpl
    def pparallel_backends(self) -> list[Backend]:
        config = f"{__name__}:SafeConfig"
        return [Backend("serializer", "strongbox", config=config, target=f"{__name__}:Safe")]


def test_a_class_names_synonyms_and_a_field_for_numbers() -> None:
    registry = Registry(Plugin())
    assert load({"serializer": "strongbox"}, registry=registry).serializer == SafeConfig()
    assert SafeConfig.model_validate(3).depth == 3
    for key, here in {"level": "depth", "pin": "code", "kind": "backend"}.items():
        with pytest.raises(ConfigError, match=f"^{key}: '{key}' is called '{here}' here$"):
            SafeConfig(**{key: "hunter2"})
    with pytest.raises(ConfigError) as caught:
        untyped(SafeConfig)("hunter2")
    assert "hunter2" not in str(caught.value)


def test_what_was_not_given_is_not_set() -> None:
    assert ThreadPoolConfig(size=2).model_fields_set == {"size"}


def test_synonyms_are_no_fields() -> None:
    classes: list[type[Config]] = [pparallel.RuntimeConfig, *INTERFACES.values()]
    registry = default_registry()
    classes += [registry.config(o.interface, o.name) for o in registry.offers() if o.interface]
    for cls in classes:
        assert not cls.short or cls.short in cls.model_fields
        if not issubclass(cls, BackendConfig):
            assert set(cls.synonyms.values()) <= set(cls.model_fields)
            assert not set(cls.synonyms) & set(cls.model_fields)
    assert set(OVERRIDES) <= set(pparallel.RuntimeConfig.model_fields)
