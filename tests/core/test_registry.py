"""The registry: what plugins offer, and what is done about those that are broken."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import pytest
from pydantic import ValidationError
from typing_extensions import Buffer, override
from warm_interpreter import Done, WarmInterpreter

import pparallel
import pparallel_local
from pparallel.config import BackendConfig
from pparallel.errors import ConfigError, MissingDependencyError, UnknownBackendError
from pparallel.interfaces.pool import PoolConfig
from pparallel.interfaces.serializer import Serializer, SerializerConfig
from pparallel.plugin import INTERFACE_VERSIONS, Backend, hookimpl
from pparallel.registry import (
    INTERFACES,
    Offer,
    Registry,
    default_registry,
    interface_class,
)
from pparallel.runtime.member import Member
from pparallel_local import ThreadPoolConfig


class ShelfConfig(SerializerConfig, frozen=True):
    backend: Literal["shelf"] = "shelf"
    depth: int = 1


class NamelessConfig(SerializerConfig, frozen=True):
    pass


class HomelessConfig(BackendConfig[object], frozen=True):
    interface = "shelf"
    backend: Literal["homeless"] = "homeless"


class Shelf(Serializer):
    def __init__(self, config: ShelfConfig, *, member: Member) -> None:
        pass

    @override
    def dumps(self, obj: Any) -> list[Buffer]:
        return []

    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        return None


class HalfAShelf(Serializer):
    @override
    def dumps(self, obj: Any) -> list[Buffer]:
        return []


class Nothing(Shelf):
    def __init__(self) -> None:
        pass


class OnlyConfig(Shelf):
    def __init__(self, config: ShelfConfig) -> None:
        pass


class Misspelt(Shelf):
    def __init__(self, config: ShelfConfig, *, member: Member, serialiser: Serializer) -> None:
        pass


class Positional(Shelf):
    def __init__(self, config: ShelfConfig, member: Member, serializer: Serializer) -> None:
        pass


class Raises(Shelf):
    def __init__(self, config: ShelfConfig, *, member: Member) -> None:
        message = "out of stock"
        raise TypeError(message)


class Plugin:
    def __init__(self, name: str, offer: Callable[[], Any]) -> None:
        self.__name__, self._offer = name, offer

    @hookimpl
    def pparallel_backends(self) -> Any:
        return self._offer()


HERE = f"{__name__}:ShelfConfig"
VERSION = INTERFACE_VERSIONS["serializer"]


def shelf(target: str = "json:JSONDecoder", config: str = HERE, **options: Any) -> Backend:
    return Backend("serializer", "shelf", config=config, target=target, **options)


def registry_of(*backends: object) -> Registry:
    return Registry(Plugin("shop", lambda: backends), entry_points=False)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PPARALLEL_STRICT_PLUGINS", raising=False)
    monkeypatch.delenv("PPARALLEL_DISABLE_PLUGINS", raising=False)


def test_the_interfaces() -> None:
    assert sorted(INTERFACES) == [
        "collective",
        "launcher",
        "ordered_server",
        "placer",
        "pool",
        "reducer",
        "serializer",
        "transport",
    ]
    assert all(cls.interface == name for name, cls in INTERFACES.items())
    assert set(INTERFACE_VERSIONS) == set(INTERFACES)


def test_the_embedded_backends_are_installed() -> None:
    offers = {(each.interface, each.name): each for each in default_registry().offers()}
    assert {
        ("serializer", "pickle"),
        ("serializer", "dill"),
        ("pool", "serial"),
        ("pool", "thread"),
        ("transport", "local"),
        ("ordered_server", "memory"),
        ("ordered_server", "hosted"),
        ("reducer", "grad_server"),
        ("reducer", "local"),
        ("launcher", "thread"),
    } <= set(offers)
    for each in offers.values():
        if each.package == "pparallel":
            assert (each.status, each.detail) == ("available", "")
            assert each.interface_version == INTERFACE_VERSIONS[each.interface]
    assert offers["launcher", "thread"].reach == ("threads",)


@pytest.mark.parametrize("each", default_registry().offers(), ids=str)
def test_every_installed_backend_can_be_imported(each: Offer) -> None:
    registry = default_registry()
    backend = registry.find(each.interface, each.name)
    assert (backend.interface, backend.name) == (each.interface, each.name)
    assert registry.load(backend).__name__ == backend.target.partition(":")[2]
    config = registry.config(each.interface, each.name)
    assert config.interface == each.interface


def test_the_default_registry_is_made_once() -> None:
    assert default_registry() is default_registry()


def test_find() -> None:
    backend = shelf()
    assert registry_of(backend).find("serializer", "shelf") is backend


def test_an_unknown_backend() -> None:
    with pytest.raises(UnknownBackendError, match=r"'shel'\. Did you mean 'shelf'\?$"):
        registry_of(shelf()).find("serializer", "shel")
    with pytest.raises(UnknownBackendError, match="no pool backend 'shelf'; installed: none"):
        registry_of(shelf()).find("pool", "shelf")
    with pytest.raises(ConfigError, match=r"no interface 'serialiser'\. Did you mean 'serializer'"):
        registry_of(shelf()).find("serialiser", "shelf")


def validated(base: type[BackendConfig[Any]], raw: object) -> BackendConfig[Any]:
    registry = Registry(Plugin("shop", lambda: [shelf()]))
    return base.model_validate(raw, context=registry.context)


def test_sections_become_the_configs_of_plugins() -> None:
    assert validated(SerializerConfig, {"backend": "shelf", "depth": 3}) == ShelfConfig(depth=3)
    assert validated(SerializerConfig, "shelf") == ShelfConfig()
    assert validated(ShelfConfig, {"depth": 2}) == ShelfConfig(depth=2)
    assert validated(PoolConfig, {}) == ThreadPoolConfig()
    assert validated(PoolConfig, {"backend": None}) == ThreadPoolConfig()
    for base, raw in (ShelfConfig, "dill"), (PoolConfig, {"backend": ["thread"]}):
        with pytest.raises(ValidationError, match="backend"):
            validated(base, raw)
    with pytest.raises(ValidationError, match="no pool backend 'shelf'"):
        validated(PoolConfig, "shelf")


def test_every_interface_has_a_default() -> None:
    assert {name: default_registry().default(name) for name in INTERFACES} == {
        "launcher": "thread",
        "transport": "local",
        "serializer": "dill",
        "pool": "thread",
        "ordered_server": "memory",
        "reducer": "grad_server",
        "collective": "local",
        "placer": "exact",
    }


def test_offers_are_sorted_and_say_everything() -> None:
    here = shelf(features=frozenset({"b", "a"}), reach=frozenset({"threads", "machines"}))
    assert registry_of(here).offers() == [
        Offer(
            "serializer",
            "shelf",
            "",
            "",
            ("a", "b"),
            ("machines", "threads"),
            "available",
            "",
            VERSION,
        )
    ]
    offers = Registry(Plugin("shop", lambda: [3])).offers()
    assert [(each.interface, each.name) for each in offers[:-1]] == sorted(
        (each.interface, each.name) for each in offers[:-1]
    )
    assert (offers[-1].interface, offers[-1].name, offers[-1].status) == ("", "shop", "broken")


def test_a_missing_dependency_is_seen_without_importing() -> None:
    gone = shelf(
        "shop_wares:Shelf", requires=("json", "no_such_library.part"), install="pip install x"
    )
    registry = registry_of(gone)
    (offer,) = registry.offers()
    assert offer.status == "missing dependency"
    assert offer.detail == "not installed: no_such_library.part; to install: pip install x"
    assert registry.find("serializer", "shelf") is gone


def test_sets_are_kept_as_frozensets() -> None:
    written, kept = shelf(features={"objects"}, reach={"threads"}), frozenset({"objects"})
    assert (written.features, written.reach) == (kept, frozenset({"threads"}))
    assert written == shelf(features=kept, reach=frozenset({"threads"}))
    assert isinstance(hash(written), int)
    (offer,) = registry_of(written).offers()
    assert offer.features == ("objects",)


BROKEN: list[tuple[Callable[[], object], str]] = [
    (lambda: "shelf", "offers 'shelf', which is no pparallel.plugin.Backend"),
    (lambda: shelf(config=cast(Any, dict)), r"config=<class 'dict'>\. Write 'module:Class'"),
    (lambda: shelf("no_class"), r"target='no_class'\. Write 'module:Class'"),
    (lambda: shelf(features=frozenset({1})), r"features=frozenset\(\{1\}\)\. Write a set of text"),
    (lambda: shelf(features="objects"), r"'objects'\. .*, as frozenset\(\{'references'\}\)"),
    (lambda: shelf(requires="torch"), r"requires='torch'\. Write a tuple, as"),
    (lambda: shelf(reach=None), r"reach=None\. .*, as frozenset\(\{'processes'\}\)"),
    (
        lambda: shelf(reach=frozenset({"process"})),
        "There are only machines, processes, threads.* mean 'processes'",
    ),
    (lambda: shelf(interface_version="1"), r"interface_version='1'\. Write a whole number"),
    (lambda: shelf(interface_version=True), "interface_version=True. Write a whole number"),
    (
        lambda: Backend("serialiser", "shelf", config=HERE, target="a:B"),
        r"interface='serialiser'\. Did you mean 'serializer'",
    ),
    (lambda: Backend("pool", "", config=HERE, target="a:B"), "name=''. Write text, as 'shelf'"),
]


@pytest.mark.parametrize(("offer", "message"), BROKEN, ids=[each[1] for each in BROKEN])
def test_a_broken_record_harms_no_other_plugin(
    offer: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = [Plugin("shop", lambda: [shelf(), offer()]), pparallel_local]
    registry = Registry(*plugins, entry_points=False)
    assert registry.find("pool", "thread").name == "thread"
    (broken,) = [each for each in registry.offers() if each.status == "broken"]
    assert re.search(message, broken.detail)
    with pytest.raises(UnknownBackendError, match="failed to load may offer it: shop"):
        registry.find("serializer", "shelf")
    monkeypatch.setenv("PPARALLEL_STRICT_PLUGINS", "1")
    with pytest.raises(ConfigError, match=f"plugin shop .*{message}"):
        Registry(*plugins, entry_points=False)


@pytest.mark.parametrize(("by", "which"), [(-1, "shop"), (1, "pparallel")])
def test_a_backend_of_another_version_harms_no_other(
    by: int, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [shelf(interface_version=VERSION + by), *pparallel_local.pparallel_backends()]
    registry = registry_of(*records)
    assert registry.find("pool", "thread").name == "thread"
    why = f"written for version {VERSION + by} of the interface serializer, .*: upgrade {which}"
    (broken,) = [each for each in registry.offers() if each.status == "broken"]
    assert (broken.interface, broken.name) == ("serializer", "shelf")
    assert re.search(why, broken.detail)
    with pytest.raises(ConfigError, match=f"'shelf' of plugin shop is broken: .*{why}"):
        registry.find("serializer", "shelf")
    monkeypatch.setenv("PPARALLEL_STRICT_PLUGINS", "1")
    with pytest.raises(ConfigError, match=why):
        registry_of(*records)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("json:JSONDecoder", "the config must derive from .*serializer.SerializerConfig"),
        (f"{__name__}:HomelessConfig", "the config must derive from"),
        (f"{__name__}:NamelessConfig", "must give its field 'backend' the default 'shelf'"),
        (f"{__name__}:ShelfConfi", "has no class 'ShelfConfi'. Did you mean 'ShelfConfig'"),
        ("no_such_module:Shelf", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_config_that_is_not_this_backends(config: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"serializer backend 'shelf' .*{message}"):
        registry_of(shelf(config=config)).config("serializer", "shelf")


def fail() -> Any:
    message = "out of stock"
    raise LookupError(message)


def fail_late() -> Iterator[Backend]:
    yield shelf()
    fail()


@pytest.mark.parametrize(
    ("offer", "trace"),
    [
        (fail, "LookupError: out of stock"),
        (fail_late, "LookupError: out of stock"),
        (sys.exit, "SystemExit"),
        (lambda: None, "returns None, not a list"),
        (lambda: 3, "not iterable"),
    ],
)
def test_a_hook_that_fails_harms_no_other(
    offer: Callable[[], Any], trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = [Plugin("shop", offer), pparallel_local]
    registry = Registry(*plugins, entry_points=False)
    assert registry.find("pool", "thread").name == "thread"
    with pytest.raises(UnknownBackendError, match="failed to load may offer it: shop; type"):
        registry.find("serializer", "shelf")
    broken = registry.offers()[-1]
    assert (broken.name, broken.status) == ("shop", "broken")
    assert trace in broken.detail
    assert "Traceback" in broken.detail
    monkeypatch.setenv("PPARALLEL_STRICT_PLUGINS", "1")
    with pytest.raises(ConfigError, match="plugin shop cannot be loaded"):
        Registry(*plugins, entry_points=False)


def test_a_plugin_without_the_hook() -> None:
    registry = Registry(ModuleType("empty_shop"), entry_points=False)
    (broken,) = registry.offers()
    assert "no function pparallel_backends marked with pparallel.plugin.hookimpl" in broken.detail


def test_duplicates_are_refused_naming_both(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = [
        Plugin("left_shop", lambda: [shelf("left:Shelf")]),
        Plugin("right_shop", lambda: [shelf("right:Shelf")]),
        pparallel_local,
    ]
    registry = Registry(*plugins, entry_points=False)
    assert registry.find("pool", "thread").name == "thread"
    message = (
        "serializer backend 'shelf' is offered by left_shop as left:Shelf and by right_shop as"
        " right:Shelf: uninstall one"
    )
    with pytest.raises(ConfigError, match=message):
        registry.find("serializer", "shelf")
    doubtful = [each for each in registry.offers() if each.name == "shelf"]
    assert [each.status for each in doubtful] == ["broken", "broken"]
    monkeypatch.setenv("PPARALLEL_STRICT_PLUGINS", "1")
    with pytest.raises(ConfigError, match=message):
        Registry(*plugins, entry_points=False)


def test_a_plugin_given_twice_counts_once() -> None:
    registry = Registry(pparallel_local)
    assert registry.config("pool", "thread") is ThreadPoolConfig


def test_load() -> None:
    registry = registry_of()
    assert registry.load(shelf(f"{__name__}:Shelf")) is Shelf
    with pytest.raises(
        ConfigError, match=r"json has no class 'JSONDecode'\. Did you mean 'JSONDecoder'"
    ):
        registry.load(shelf("json:JSONDecode"))
    with pytest.raises(ConfigError, match="json has no class 'dumps'"):
        registry.load(shelf("json:dumps"))
    with pytest.raises(ConfigError, match=r"serializer backend 'shelf' .* cannot be imported: Mod"):
        registry.load(shelf("no_such_module:Shelf"))


def test_a_class_that_fills_no_interface_or_only_half_of_it() -> None:
    registry = registry_of()
    message = r"shelf' \(json:JSONDecoder\): JSONDecoder must derive from .*serializer\.Serializer$"
    with pytest.raises(ConfigError, match=message):
        registry.load(shelf("json:JSONDecoder"))
    message = "HalfAShelf leaves out what Serializer asks for: loads$"
    with pytest.raises(ConfigError, match=message):
        registry.load(shelf(f"{__name__}:HalfAShelf"))


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        ("Nothing", r"\) cannot be called .*, \(config, \*, member\): too many positional"),
        ("OnlyConfig", r"unexpected keyword argument 'member'\. Parts .*: serializer, pool, "),
        ("Misspelt", "missing a required argument: 'serialiser'"),
        ("Positional", r"missing a required argument: 'serializer'\. .* by keyword, after \*"),
    ],
)
def test_a_constructor_that_cannot_be_called(cls: str, message: str) -> None:
    plugin = Plugin("shop", lambda: [shelf(f"{__name__}:{cls}")])
    with pytest.raises(ConfigError, match=rf"\.{cls}\(.*{message}"):
        pparallel.build(ShelfConfig(), registry=Registry(plugin))


def test_what_a_constructor_raises_is_passed_on() -> None:
    plugin = Plugin("shop", lambda: [shelf(f"{__name__}:Raises")])
    with pytest.raises(TypeError, match=r"^out of stock$"):
        pparallel.build(ShelfConfig(), registry=Registry(plugin))


@pytest.mark.parametrize("name", INTERFACES)
def test_the_class_of_an_interface(name: str) -> None:
    assert interface_class(INTERFACES[name]) is getattr(pparallel, _camel(name))


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (
            "import no_such_library",
            MissingDependencyError,
            "No module named 'no_such_library'; to install it: pip install shelves",
        ),
        ("from json import no_such_name", MissingDependencyError, "cannot import name"),
        ("import shop_wares.absent", ConfigError, "cannot be imported: ModuleNotFoundError"),
        ("raise LookupError('out of stock')", ConfigError, "imported: LookupError: out of stock"),
        ("raise SystemExit(3)", ConfigError, "cannot be imported: SystemExit: 3"),
        ("1 +", ConfigError, "cannot be imported: SyntaxError"),
    ],
)
def test_a_backend_that_cannot_be_imported(
    code: str,
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "shop_wares.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    backend = shelf("shop_wares:Shelf", install="pip install shelves")
    try:
        with pytest.raises(error, match=message) as caught:
            registry_of(backend).load(backend)
    finally:
        sys.modules.pop("shop_wares", None)
    assert caught.value.__cause__ is not None


# -- distributions outside the tree ---------------------------------------------------------------

SHELF = """
    from typing import Literal
    from pparallel.interfaces.serializer import Serializer, SerializerConfig
    from pparallel.plugin import Backend, hookimpl

    class ShelfConfig(SerializerConfig, frozen=True):
        backend: Literal["shelf"] = "shelf"
        indent: int = 0

    @hookimpl
    def pparallel_backends():
        return [Backend("serializer", "shelf", config="acme_shelf:ShelfConfig",
                        target="acme_shelf.serializer:ShelfSerializer",
                        features=frozenset({"objects"}), install="pip install acme-shelf")]
"""
SERIALIZER = """
    import json
    from pparallel.interfaces.serializer import Serializer

    class ShelfSerializer(Serializer):
        def __init__(self, config, *, member):
            self.indent = config.indent

        def dumps(self, obj):
            return [json.dumps(obj, indent=self.indent).encode()]

        def loads(self, buffers):
            return json.loads(bytes(buffers[0]))
"""
USE = """
    import json, sys
    import pparallel
    from pparallel.registry import default_registry

    offers = [(o.interface, o.name, o.package, o.version, list(o.features), o.status, o.detail)
              for o in default_registry().offers() if o.package.startswith("acme")]
    assert "acme_shelf.serializer" not in sys.modules
    with pparallel.build({"serializer": {"backend": "shelf", "indent": 2}}) as rt:
        from_mapping = [type(rt.serializer).__name__, rt.serializer.indent]
        mapped = rt.pool.map(abs, [-1, 2])
    import acme_shelf
    alone = pparallel.build(acme_shelf.ShelfConfig())
    echoed = alone.loads(alone.dumps({"a": [1]}))
    print(json.dumps([offers, from_mapping, mapped, echoed]))
"""


def install(folder: Path, name: str, modules: dict[str, str], version: str = "1.2") -> None:
    """Lay out a distribution as pip would, with an entry point that names its package."""
    package = folder / name
    package.mkdir(parents=True)
    for module, code in modules.items():
        (package / f"{module}.py").write_text(textwrap.dedent(code))
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    dist = name.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[pparallel]\n{name.partition('_')[2]} = {name}\n")


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmInterpreter]:
    """Each program is a fork of it."""
    with WarmInterpreter("pparallel.builder.runtime", "pparallel_local") as interpreter:
        yield interpreter


Run = Callable[..., Done]


@pytest.fixture
def run(site: Path, warm: WarmInterpreter) -> Run:
    """What runs a program that finds what is installed in ``site``."""

    def execute(code: str, **environment: str) -> Done:
        return warm.execute(textwrap.dedent(code), site, PYTHONPATH=str(site), **environment)

    return execute


@pytest.fixture
def site(tmp_path: Path) -> Path:
    install(tmp_path, "acme_shelf", {"__init__": SHELF, "serializer": SERIALIZER})
    return tmp_path


def test_a_distribution_outside_the_tree_is_listed_and_built(run: Run) -> None:
    done = run(USE)
    assert done.returncode == 0, done.stderr
    offers, from_mapping, mapped, echoed = json.loads(done.stdout)
    assert offers == [["serializer", "shelf", "acme-shelf", "1.2", ["objects"], "available", ""]]
    assert from_mapping == ["ShelfSerializer", 2]
    assert mapped == [1, 2]
    assert echoed == {"a": [1]}


@pytest.mark.parametrize(
    ("code", "trace"),
    [
        ("raise LookupError('out of stock')", "LookupError: out of stock"),
        ("import sys; sys.exit(5)", "SystemExit: 5"),
        ("import no_such_library", "No module named 'no_such_library'"),
        ("import acme_ruin.absent", "No module named 'acme_ruin.absent'"),
    ],
)
def test_a_distribution_that_raises_on_import_is_reported_and_harms_nothing(
    site: Path, run: Run, code: str, trace: str
) -> None:
    install(site, "acme_ruin", {"__init__": code}, "0.3")
    done = run(USE)
    assert done.returncode == 0, done.stderr
    offers, *rest = json.loads(done.stdout)
    assert rest == [["ShelfSerializer", 2], [1, 2], {"a": [1]}]
    assert offers[0][1] == "shelf"
    assert offers[1][:6] == ["", "ruin", "acme-ruin", "0.3", [], "broken"]
    assert "Traceback" in offers[1][6]
    assert trace in offers[1][6]


ASK = """
    import pparallel
    pparallel.load({"serializer": {"backend": "rui"}})
"""


def test_a_broken_distribution_is_named_when_its_backend_is_asked_for(site: Path, run: Run) -> None:
    install(site, "acme_ruin", {"__init__": "raise LookupError('out of stock')"}, "0.3")
    done = run(ASK)
    assert "UnknownBackendError: serializer.backend: no serializer backend 'rui'" in done.stderr
    assert "failed to load may offer it: acme_ruin (acme-ruin 0.3)" in done.stderr


def test_strict_and_disabled(site: Path, run: Run) -> None:
    install(site, "acme_ruin", {"__init__": "raise LookupError('out of stock')"}, "0.3")
    strict = run("import pparallel; pparallel.load()", PPARALLEL_STRICT_PLUGINS="1")
    assert strict.returncode == 1
    assert "LookupError: out of stock" in strict.stderr
    assert "ConfigError: plugin acme_ruin (acme-ruin 0.3) cannot be loaded" in strict.stderr
    left_out = run(
        "import sys, pparallel; pparallel.load(); print('acme_shelf' in sys.modules)",
        PPARALLEL_STRICT_PLUGINS="1",
        PPARALLEL_DISABLE_PLUGINS=" ruin, shelf,",
    )
    assert (left_out.stdout.strip(), left_out.returncode) == ("False", 0), left_out.stderr


def test_two_distributions_that_offer_the_same(site: Path, run: Run) -> None:
    copy = SHELF.replace("acme_shelf", "other_shelf")
    install(site, "other_shelf", {"__init__": copy, "serializer": SERIALIZER}, "7")
    done = run("import pparallel; pparallel.load({'serializer': {'backend': 'shelf'}})")
    assert "ConfigError: " in done.stderr
    for part in (
        "acme_shelf (acme-shelf 1.2) as acme_shelf.serializer:ShelfSerializer",
        "other_shelf (other-shelf 7) as other_shelf.serializer:ShelfSerializer",
    ):
        assert part in done.stderr
    untouched = run("import pparallel; print(pparallel.load({'pool': {'size': 2}}).pool.size)")
    assert untouched.stdout.strip() == "2", untouched.stderr


def test_an_entry_point_that_names_no_module(site: Path, run: Run) -> None:
    install(site, "acme_ruin", {"__init__": ""}, "0.3")
    (site / "acme_ruin").rename(site / "acme_ruins")
    code = "from pparallel.registry import default_registry; print(default_registry().offers()[-1])"
    done = run(code)
    assert "name='ruin', package='acme-ruin', version='0.3'" in done.stdout, done.stderr
    said = "its entry point ruin = 'acme_ruin' names a module that is not installed: there is no"
    assert said in done.stdout.replace("\\'", "'")
    assert "Traceback" not in done.stdout
    done = run("import pparallel; pparallel.load()", PPARALLEL_STRICT_PLUGINS="1")
    assert f"plugin acme_ruin (acme-ruin 0.3) cannot be loaded: {said}" in done.stderr


def test_an_entry_point_that_is_no_name(site: Path, run: Run) -> None:
    install(site, "acme_ruin", {"__init__": ""}, "0.3")
    (site / "acme_ruin-0.3.dist-info" / "entry_points.txt").write_text('[pparallel]\nruin = "a"\n')
    code = "from pparallel.registry import default_registry; print(default_registry().offers()[-1])"
    done = run(code)
    assert "names no module: write 'package'" in done.stdout.replace("\\'", "'"), done.stderr
