"""Functions and classes that serializers send, of modules and of ``__main__``."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import os
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import pytest
from serializers_sent import MADE, PREAMBLE, run_script, sent
from serializers_sent import across as across
from serializers_sent import dill as dill
from serializers_sent import serializer as serializer
from typing_extensions import override

from pparallel.errors import SerializationError
from pparallel_serializers import DillSerializerConfig, PickleSerializerConfig, mark_static_module
from pparallel_serializers.dill import DillSerializer
from pparallel_serializers.pickle import PickleSerializer

T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        self.x = x

    def above(self) -> Any:
        return super()


def plain(x: int) -> int:
    return x + COUNTER


COUNTER = 10


class TestCode:
    def test_one_memo_for_closures_and_what_is_outside(self, dill: DillSerializer) -> None:
        shared: list[int] = []

        def push(x: int) -> None:
            shared.append(x)

        found, same, again = sent(dill, [push, shared, lambda: shared])
        found(5)
        assert same == [5]
        assert again() is same
        assert shared == []

    def test_functions_share_a_cell(self, dill: DillSerializer) -> None:
        def make() -> tuple[Callable[[], None], Callable[[], int]]:
            count = 0

            def up() -> None:
                nonlocal count
                count += 1

            return up, lambda: count

        up, read = sent(dill, make())
        up()
        assert read() == 1

    def test_cycles_through_closures(self, dill: DillSerializer) -> None:
        holder: dict[str, Any] = {}
        holder["me"] = lambda: holder
        found = sent(dill, holder)
        assert found["me"]() is found

        def even(n: int) -> bool:
            return n == 0 or odd(n - 1)

        def odd(n: int) -> bool:
            return n != 0 and even(n - 1)

        assert sent(dill, even)(10)
        cell = (lambda: even).__closure__[0]  # type: ignore[index]
        assert sent(dill, cell).cell_contents(4)

    def test_everything_that_a_function_has(self, dill: DillSerializer) -> None:
        def function(a: int, b: list[int] = [1], *, c: str = "c") -> str:  # noqa: B006
            """Says something."""
            return f"{a}{b}{c}"

        function.note = "attribute"  # type: ignore[attr-defined]
        found = sent(dill, function)
        assert found(1) == "1[1]c"
        assert found.__doc__ == "Says something."
        assert found.note == "attribute"
        assert found.__qualname__ == function.__qualname__
        assert found.__module__ == __name__
        assert found.__kwdefaults__ == {"c": "c"}
        assert found.__annotations__ == function.__annotations__

    def test_kinds_of_functions(self, dill: DillSerializer) -> None:
        async def coroutine() -> int:
            return 1

        def generator() -> Any:
            yield 1

        partial = functools.partial(lambda a, b: a - b, b=1)
        assert sent(dill, partial)(5) == 4
        assert list(sent(dill, generator)()) == [1]
        with pytest.raises(StopIteration, match="1"):
            sent(dill, coroutine)().send(None)
        cached = functools.lru_cache(maxsize=3)(lambda n: n + 1)
        assert sent(dill, cached)(1) == 2
        assert sent(dill, cached).cache_parameters()["maxsize"] == 3
        assert sent(dill, functools.wraps(plain)(lambda x: x * 2))(4) == 8

    def test_importable_goes_by_name(self, dill: DillSerializer) -> None:
        for each in (
            plain,
            os.path.join,
            len,
            Colour,
            Colour.RED,
            dict,
            TestCode.helper,
            str.upper,
        ):
            assert sent(dill, each) is each
            assert dill.dumps(each)[0] == PickleSerializer(PickleSerializerConfig()).dumps(each)[0]

    @staticmethod
    def helper() -> None: ...

    def test_functions_see_the_receivers_module(self, dill: DillSerializer) -> None:
        recursing = DillSerializer(DillSerializerConfig(recurse=True))
        function = lambda: plain(1) + COUNTER  # noqa: E731
        live, copy = sent(dill, function), sent(recursing, function)
        assert live() == copy() == 21
        globals()["COUNTER"] = 20
        try:
            assert live() == 41
            assert copy() == 31  # plain is importable: it goes by name
        finally:
            globals()["COUNTER"] = 10

    def test_modules_go_by_name(self, dill: DillSerializer) -> None:
        assert sent(dill, os.path) is os.path
        made = types.ModuleType("made_at_run_time")
        with pytest.raises(SerializationError, match="made_at_run_time"):
            dill.dumps(lambda: made)

    def test_builtin_types_without_a_name(self, dill: DillSerializer) -> None:
        for each in (types.FunctionType, types.CellType, type(None), types.GeneratorType):
            assert sent(dill, each) is each

    def test_views_descriptors_and_proxies(self, dill: DillSerializer) -> None:
        of = {"a": 1, "b": [2]}
        keys, values, items = sent(dill, (of.keys(), of.values(), of.items()))
        assert keys == of.keys()
        assert [*values] == [*of.values()]
        assert [*items] == [*of.items()]
        assert sent(dill, types.MappingProxyType(of)) == of
        slot, code = vars(Slotted)["x"], vars(types.FunctionType)["__code__"]
        assert sent(dill, [slot, code, vars(type)["__dict__"]]) == [
            slot,
            code,
            vars(type)["__dict__"],
        ]
        above = sent(dill, Slotted(1).above())
        assert above.__thisclass__ is Slotted
        assert above.__self__.x == 1

    def test_what_a_class_may_hold(self, dill: DillSerializer) -> None:
        found = pickle_away(dill, make_classes)
        assert found["slots"].x == 1
        assert dataclasses.asdict(found["data"]) == {"a": 1, "b": [2]}
        assert [each.name for each in dataclasses.fields(found["data"])] == ["a", "b"]
        assert found["tuple"]._replace(x=5) == (5, 2)
        assert found["enum"].TWO.label() == "TWO 2"
        assert found["enum"](2) is found["enum"].TWO
        assert found["enum"](4) is found["enum"].TWO
        assert found["planet"].size == 3
        assert found["flag"] | type(found["flag"]).WRITE == type(found["flag"])(3)
        assert found["typed"](a=1) == {"a": 1}
        assert found["members"].doubled == 4
        assert found["members"].cached == "cached"
        assert found["members"].static() == "static"
        assert type(found["members"]).klass() is type(found["members"])
        assert isinstance(3, found["abstract"])
        with pytest.raises(TypeError, match="abstract"):
            found["abstract"]()
        assert found["generic"][int].__args__ == (int,)
        assert found["derived"].hello() == "derived base"
        assert found["meta"].made_by == "meta"

    def test_local_class_keeps_its_identity_here(self, dill: DillSerializer) -> None:
        classes = make_classes()
        assert type(sent(dill, classes["data"])) is type(classes["data"])
        assert sent(dill, classes["enum"].TWO) is classes["enum"].TWO


def make_classes() -> dict[str, Any]:
    return {**make_data_classes(), **make_behaviour()}


def make_data_classes() -> dict[str, Any]:
    class Slots:
        __slots__ = ("__hidden", "x")

        def __init__(self) -> None:
            self.x = 1
            self.__hidden = 2

    @dataclasses.dataclass
    class Data:
        a: int
        b: list[int] = dataclasses.field(default_factory=lambda: [2])

    class Pair(NamedTuple):
        x: int
        y: int = 2

    class Number(enum.IntEnum):
        ONE = 1
        TWO = 2
        ALIAS = 2

        @classmethod
        @override
        def _missing_(cls, value: object) -> Any:
            return cls.TWO

        def label(self) -> str:
            return f"{self.name} {int(Number(self.value))}"

    class Planet(enum.Enum):
        EARTH = (1, 2)

        def __init__(self, one: int, two: int) -> None:
            self.size = one + two

    class Access(enum.Flag):
        READ = 1
        WRITE = 2

    class Typed(TypedDict):
        a: int

    return {
        "slots": Slots(),
        "data": Data(1),
        "tuple": Pair(1),
        "enum": Number,
        "planet": Planet.EARTH,
        "flag": Access.READ,
        "typed": Typed,
    }


def make_behaviour() -> dict[str, Any]:
    class Members:
        @property
        def doubled(self) -> int:
            return 4

        @functools.cached_property
        def cached(self) -> str:
            return "cached"

        @staticmethod
        def static() -> str:
            return "static"

        @classmethod
        def klass(cls) -> type:
            return cls

    class Abstract(abc.ABC):
        @abc.abstractmethod
        def method(self) -> None: ...

    Abstract.register(int)

    class Box(Generic[T]):
        pass

    class Base:
        def hello(self) -> str:
            return "base"

    class Derived(Base):
        @override
        def hello(self) -> str:
            return f"derived {super().hello()}"

    class Meta(type):
        made_by = "meta"

    class WithMeta(metaclass=Meta):
        pass

    return {
        "members": Members(),
        "abstract": Abstract,
        "generic": Box,
        "derived": Derived(),
        "meta": WithMeta,
    }


def pickle_away(dill: DillSerializer, make: Callable[[], Any]) -> Any:
    """Return what *make* made, as a process gets it that has never seen its classes."""
    from pparallel_serializers.by_value import classes

    buffers = [bytearray(each) for each in dill.dumps(make())]
    known = dict(classes._classes)
    classes._classes.clear()
    try:
        return dill.loads(buffers)
    finally:
        classes._classes.update(known)


class TestMain:
    """What lives in ``__main__``, between processes that share none, or run the same script."""

    def test_functions_take_their_globals_along(self, across: Callable[[str, str], str]) -> None:
        writer = """
        import xml.etree.ElementTree
        rate, unused = 3, open(os.devnull)
        class Thing:
            made = 0
            def __init__(self, n): self.n = n
            def __eq__(self, other): return isinstance(other, Thing) and self.n == other.n
            def twin(self): Thing.made += 1; return Thing(scaled(self.n))
        def scaled(x): return x * rate
        def parse(): return xml.etree.ElementTree.fromstring("<a/>").tag
        write([scaled, Thing(2), lambda: Thing(rate), parse], "a")
        write([Thing(7), Thing], "b")
        Thing.made = 40
        write(Thing(0), "c")
        """
        reader = """
        scaled, thing, make, parse = read("a")
        assert scaled(2) == 6 and thing.twin().n == 6 and make().n == 3
        assert type(make()) is type(thing) and thing.twin() == type(thing)(6)
        other, Thing = read("b")
        assert type(other) is Thing is type(thing), "built twice"
        assert Thing.made == 2, "attributes set here stay"
        assert type(read("c")) is Thing and Thing.made == 2, "whatever the definer sets"
        assert parse() == "a"
        assert "dill" not in sys.modules and "torch" not in sys.modules
        print("fine")
        """
        assert across(writer, reader) == "fine\n"

    def test_a_class_comes_home(self, tmp_path: Path) -> None:
        script = """
        import subprocess
        class Thing:
            def __init__(self): self.items = []
        if len(sys.argv) == 1:
            write(Thing())
            code = "import os; exec(os.environ['PREAMBLE']); thing = read();"
            code += "thing.items.append(type(thing)); write(thing)"
            subprocess.run([sys.executable, "-c", code], check=True)
            back = read()
            assert type(back) is Thing and back.items == [Thing]
            print("fine")
        """
        text = PREAMBLE + textwrap.dedent(script)
        given = {"WHERE": str(tmp_path), "PREAMBLE": PREAMBLE}
        assert run_script(text, tmp_path, **given) == "fine\n"

    def test_ranks_of_one_script_share_classes_and_functions(self, tmp_path: Path) -> None:
        script = """
        import enum
        calls = 0
        class Thing: pass
        class Kind(enum.Enum): A = 1
        def count():
            global calls
            calls += 1
            return calls
        if os.environ["RANK"] == "0":
            calls = 100
            write([Thing(), count, Kind.A, lambda: count()])
        else:
            thing, function, kind, indirect = read()
            assert type(thing) is Thing and function is count and kind is Kind.A
            assert indirect() == 1 and calls == 1, "a rank's own state"
            print("fine")
        """
        text = PREAMBLE + textwrap.dedent(script)
        run_script(text, tmp_path, WHERE=str(tmp_path), RANK="0")
        assert run_script(text, tmp_path, WHERE=str(tmp_path), RANK="1") == "fine\n"

    def test_a_different_class_of_the_same_name_is_not_taken(
        self, across: Callable[[str, str], str]
    ) -> None:
        writer = """
        class Thing:
            def f(self): return 1
        write(Thing())
        """
        reader = """
        class Thing:
            def f(self): return 2
        assert read().f() == 1 and Thing().f() == 2
        print("fine")
        """
        assert across(writer, reader) == "fine\n"

    def test_same_process(self, tmp_path: Path) -> None:
        script = """
        x = 1
        class Thing: pass
        def get(): return x
        function, thing, anonymous = dill.loads(dill.dumps([get, Thing(), lambda: x]))
        assert function is get and type(thing) is Thing
        x = 2
        assert anonymous() == 2
        print("fine")
        """
        text = PREAMBLE + textwrap.dedent(script)
        assert run_script(text, tmp_path, WHERE="") == "fine\n"

    def test_static_main_goes_by_name(self, across: Callable[[str, str], str]) -> None:
        writer = """
        def answer(): return 1
        mark_static_module(sys.modules["__main__"])
        write([answer, lambda: answer()])
        """
        reader = """
        def answer(): return 42
        named, anonymous = read()
        assert named is answer and anonymous() == 42
        print("fine")
        """
        assert across(writer, reader) == "fine\n"

    def test_a_missing_module_is_named(self, across: Callable[[str, str], str]) -> None:
        writer = """
        pathlib.Path(os.environ["WHERE"], "elsewhere.py").write_text("def f(): pass")
        import elsewhere
        write(elsewhere.f)
        os.remove(elsewhere.__file__)
        """
        reader = """
        from pparallel.errors import SerializationError
        try: read()
        except SerializationError as error: print(error)
        """
        assert "elsewhere" in across(writer, reader)


class TestCloudpickleAlone:
    def test_main_travels_as_a_copy(self, tmp_path: Path) -> None:
        script = """
        import numpy
        from pparallel_serializers import CloudpickleSerializerConfig
        from pparallel_serializers.cloudpickle import CloudpickleSerializer
        serializer = CloudpickleSerializer(CloudpickleSerializerConfig())
        weights = numpy.zeros(1000, "f4")
        def first(): return weights[0]
        stream, data = serializer.dumps(first)
        assert len(stream) < 2000 and data.nbytes == 4000, "out of band, also among globals"
        found = serializer.loads([stream, bytearray(data)])
        weights[0] = 1
        assert found is not first and found() == 0 and first() == 1
        print("fine")
        """
        assert run_script(script, tmp_path) == "fine\n"

    def test_objects_do_not_mix(self, tmp_path: Path) -> None:
        serializer = MADE["cloudpickle"]()
        for number in range(50):
            namespace: dict[str, Any] = {"__name__": f"made_{number}", "number": number}
            exec("def get(): return number", namespace)
            assert sent(serializer, namespace.pop("get"))() == number

    def test_says_how_to_install_it(self, tmp_path: Path) -> None:
        script = """
        import sys
        sys.modules["cloudpickle"] = None
        import pparallel
        from pparallel_serializers import CloudpickleSerializerConfig
        try: pparallel.build(CloudpickleSerializerConfig())
        except pparallel.errors.MissingDependencyError as error: print(error.install)
        """
        assert run_script(script, tmp_path) == "pip install 'pparallel[cloudpickle]'\n"

    def test_static_modules_go_by_name(self) -> None:
        module = types.ModuleType("static_for_cloudpickle")
        exec("def shadowed(): return 1\nkept = shadowed\ndef shadowed(): return 2", vars(module))
        sys.modules[module.__name__] = module
        try:
            assert sent(MADE["cloudpickle"](), module.kept) is not module.shadowed
            mark_static_module(module)
            assert sent(MADE["cloudpickle"](), module.kept) is module.shadowed
        finally:
            del sys.modules[module.__name__]


class TestImports:
    def test_light_until_needed(self, tmp_path: Path) -> None:
        script = """
        assert dill.loads(dill.dumps(lambda x: x + 1))(1) == 2
        assert list(dill.loads(dill.dumps({1: 2}.keys()))) == [1]
        heavy = {"dill", "torch", "numpy", "cloudpickle"} & set(sys.modules)
        assert not heavy, heavy
        import numpy
        assert dill.loads(dill.dumps(numpy.ones(3))).sum() == 3
        print("fine")
        """
        text = PREAMBLE + textwrap.dedent(script)
        assert run_script(text, tmp_path, WHERE="") == "fine\n"

    def test_static_module_by_its_name(self, dill: DillSerializer) -> None:
        module = types.ModuleType("static_example")
        exec("def shadowed(): return 1\nkept = shadowed\ndef shadowed(): return 2", vars(module))
        sys.modules["static_example"] = module
        try:
            assert sent(dill, module.kept) is not module.shadowed
            mark_static_module(module)
            assert sent(dill, module.kept) is module.shadowed
        finally:
            del sys.modules["static_example"]
