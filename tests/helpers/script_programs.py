"""Programs of users: scripts with functions, classes and state at module level, and their results.

A ``Program`` is a section of a script: definitions and a function ``check_NAME(run)``, where
``run(function, *args)`` is ``pool.submit(function, *args).result()`` or
``group.rpc_sync(1, function, args=args)``. The sections of one script share a start of processes;
their names are unique. A ``Script`` is a whole file. A script gets its config as JSON in
``sys.argv[1]`` and prints a JSON object: a result for each program.

Expected values depend on the kind of place. In ``threads`` all state is the caller's. ``workers``
of a pool follow their caller and keep what tasks made. ``members`` have a state of their own. Each
value is what the original gives: ``concurrent.futures.ProcessPoolExecutor`` with one worker and
start method ``spawn`` for workers, torch RPC between two processes for members,
``concurrent.futures.ThreadPoolExecutor`` for threads. ``differs`` gives the reason for a program
whose original gives another value; the soak runs the originals of all others.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

#: seconds that a script may take
LIMIT = 100

POOLS: dict[str, dict[str, Any]] = {
    "thread": {"backend": "thread", "size": 1},
    "fork": {"backend": "process", "size": 1, "start_method": "fork"},
    "forkserver": {"backend": "process", "size": 1, "start_method": "forkserver"},
    "spawn": {"backend": "process", "size": 1, "start_method": "spawn"},
    "ray_pool": {"backend": "ray", "size": 1, "cluster": {"num_cpus": 8}},
}
TRANSPORTS: dict[str, dict[str, Any]] = {
    "local": {"launcher": {"backend": "thread"}, "transport": {"backend": "local"}},
    "ipc": {"launcher": {"backend": "process"}, "transport": {"backend": "ipc"}},
    "zmq": {"launcher": {"backend": "process"}, "transport": {"backend": "zmq"}},
    "torch_rpc": {
        "launcher": {"backend": "process", "preload": ["torch.distributed.rpc"]},
        "transport": {"backend": "torch_rpc"},
    },
    "ray": {
        "launcher": {"backend": "ray", "cluster": {"num_cpus": 8}},
        "transport": {"backend": "ray"},
    },
}
#: ways to run the originals; they need a guard
ORIGINALS = ("executor_thread", "executor_spawn", "original_torch_rpc")


def kind_of(way: str) -> str:
    """Return whether a way's functions run in threads, workers or members."""
    if way in {"thread", "local", "executor_thread"}:
        return "threads"
    return "workers" if way in {*POOLS, "executor_spawn"} else "members"


class Raises(NamedTuple):
    """An exception as an expected value: its type's name, and words of its message."""

    name: str
    words: str = ""


class Missing:
    """The expected value where a program makes no sense."""


MISSING = Missing()


@dataclass(frozen=True)
class Program:
    """A section of a script.

    Attributes:
        name: unique; ``check_NAME`` is its function.
        source: definitions at module level.
        threads: the value expected of ``check_NAME`` where functions run in threads.
        workers: the same for workers of a pool.
        members: the same for members.
        ways: values for single ways, which go before those of their kind.
        differs: a reason, if the original gives another value.
        imports: slow modules that it needs.
        needs_file: whether it fails in ``python -``.
        needs_main: whether it fails where ``__main__`` is not the script: cProfile's until 3.11.
    """

    name: str
    source: str
    threads: Any = MISSING
    workers: Any = MISSING
    members: Any = MISSING
    ways: dict[str, Any] = field(default_factory=dict)
    differs: str = ""
    imports: tuple[str, ...] = ()
    needs_file: bool = False
    needs_main: bool = False

    def expected(self, way: str) -> Any:
        return self.ways.get(way, getattr(self, kind_of(way)))


def programs_of(way: str, how: str = "script") -> list[str]:
    """Return the names of programs that make sense in a way and with a start."""
    return [
        each.name
        for each in PROGRAMS.values()
        if each.expected(way) is not MISSING
        and not (each.needs_file and how == "stdin")
        and not (each.needs_main and how == "profile")
    ]


def failures(found: dict[str, Any], way: str) -> dict[str, tuple[Any, Any]]:
    """Return of each program that gives another value what it gives, and what is expected."""
    expected = {each: PROGRAMS[each].expected(way) for each in found}
    return {
        each: (found[each], expected[each])
        for each in found
        if not matches(found[each], expected[each])
    }


PROGRAMS: dict[str, Program] = {}


def program(name: str, source: str, everywhere: Any = MISSING, **options: Any) -> None:
    """Add a program; *everywhere* is the value for all kinds that *options* do not name."""
    kinds = dict.fromkeys(("threads", "workers", "members"), everywhere)
    assert name not in PROGRAMS
    PROGRAMS[name] = Program(name, textwrap.dedent(source), **{**kinds, **options})


def matches(found: Any, expected: Any) -> bool:
    """Return whether a result, read from JSON, is the one expected."""
    if isinstance(expected, Raises):
        name, _, words = found.partition(": ") if isinstance(found, str) else ("", "", "")
        return name == expected.name and expected.words in words
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(matches(found[key], value) for key, value in expected.items())
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(matches, found, expected))
        )
    return type(found) is type(expected) and bool(found == expected)


# -- how a script is put together and run -----------------------------------------------------

HEAD = """
import json, os, sys

def attempt(run, function, *args):
    try:
        return run(function, *args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def results(run):
    return {name: attempt(lambda check: check(run), check) for name, check in CHECKS.items()}
"""

RUN_IN_POOL = """
import pparallel

with pparallel.build({"pool": json.loads(sys.argv[1])}) as rt:
    def run(function, *args):
        return rt.pool.submit(function, *args).result(60)

    print(json.dumps(results(run)))
"""

RUN_IN_MEMBERS = """
import pparallel

def member(rt):
    group = rt.group()

    def run(function, *args):
        return group.rpc_sync(1, function, timeout=60, args=args)

    group.barrier(60)
    found = results(run) if rt.rank == 0 else None
    group.barrier(60)
    return found

print(json.dumps(pparallel.launch({"members": 2, **json.loads(sys.argv[1])}, member)[0]))
"""

EXECUTOR_THREAD = """
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(1) as executor:
    print(json.dumps(results(lambda function, *args: executor.submit(function, *args).result())))
"""

EXECUTOR_SPAWN = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

with ProcessPoolExecutor(1, get_context("spawn")) as executor:
    print(json.dumps(results(lambda function, *args: executor.submit(function, *args).result())))
"""

ORIGINAL_TORCH_RPC = """
import torch.distributed.rpc
import torch.multiprocessing

def original_member(rank):
    rpc = torch.distributed.rpc
    rpc.init_rpc(f"member-{rank}", rank=rank, world_size=2)
    if rank == 0:
        found = results(lambda function, *args: rpc.rpc_sync("member-1", function, args=args))
        print(json.dumps(found))
    rpc.shutdown()

if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
    torch.multiprocessing.spawn(original_member, nprocs=2)
"""

RUNNERS = {
    **dict.fromkeys(POOLS, RUN_IN_POOL),
    **dict.fromkeys(TRANSPORTS, RUN_IN_MEMBERS),
    "executor_thread": EXECUTOR_THREAD,
    "executor_spawn": EXECUTOR_SPAWN,
}


def compose(names: list[str], way: str, is_guarded: bool = False) -> str:
    """Return a script of these programs, run in *way*, with or without a guard."""
    parts = [HEAD, *(PROGRAMS[each].source for each in names)]
    found = [name for each in parts for name in top_level_names(each)]
    twice = {each for each in found if found.count(each) > 1}
    assert not twice, f"names of two programs: {twice}"
    checks = ", ".join(f"{each!r}: check_{each}" for each in names)
    parts.append(f"CHECKS = {{{checks}}}")
    if way == "original_torch_rpc":
        parts.append(ORIGINAL_TORCH_RPC)
    elif is_guarded:
        guarded = textwrap.indent(RUNNERS[way], "    ")
        parts.append(f'if __name__ == "__main__":{guarded}')
    else:
        parts.append(RUNNERS[way])
    return "\n".join(parts)


def top_level_names(source: str) -> set[str]:
    """Return the names that a section binds at module level, other than by imports."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            names.update(
                each.id
                for each in ast.walk(node)
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            )
    return names


def config_of(way: str, imports: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the config of a way; what is slow to import is imported by the fork server."""
    if way in POOLS:
        config = dict(POOLS[way])
        if imports and config.get("start_method") == "forkserver":
            config["preload"] = list(imports)
        return config
    config = {key: dict(value) for key, value in TRANSPORTS[way].items()}
    if imports and config["launcher"]["backend"] == "process":
        config["launcher"]["preload"] = [*config["launcher"].get("preload", ()), *imports]
    if way == "torch_rpc":
        config["reducer"] = {"backend": "local"}
    return config


#: ways to start a script
HOW: dict[str, list[str]] = {
    "script": ["{script}"],
    "module": ["-m", "pkg.main"],
    "stdin": ["-"],
    "profile": ["-m", "cProfile", "-o", os.devnull, "{script}"],
}
#: variables that a script does not inherit
STRAY = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")


def run_script(
    source: str, folder: Path, argument: str = "", how: str = "script", **files: str
) -> Any:
    """Run a script in a process of its own; return the JSON object that it prints.

    Args:
        source: the script.
        folder: an empty one for it.
        argument: ``sys.argv[1]``.
        how: a key of HOW.
        files: modules beside the script, by name without ``.py``.
    """
    home = folder / "pkg" if how == "module" else folder
    home.mkdir(exist_ok=True)
    script = home / ("main.py" if how == "module" else "script.py")
    script.write_text(source)
    for name, text in files.items():
        for each in {home, folder}:
            (each / f"{name}.py").write_text(textwrap.dedent(text))
    command = [sys.executable, *(each.format(script=script) for each in HOW[how]), argument]
    done = subprocess.run(
        command,
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key not in STRAY},
        input=source if how == "stdin" else "",
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert not done.returncode, done.stdout + done.stderr
    assert lines, done.stderr
    return json.loads(lines[-1])


def run_programs(
    names: list[str], way: str, folder: Path, how: str = "script", is_guarded: bool = False
) -> dict[str, Any]:
    """Run programs in one script; return the results by their names."""
    imports = tuple(sorted({name for each in names for name in PROGRAMS[each].imports}))
    argument = "" if way in ORIGINALS else json.dumps(config_of(way, imports))
    source = compose(names, way, is_guarded)
    found = run_script(source, folder, argument, how, **MODULES)
    assert isinstance(found, dict)
    return found


#: modules beside each script
MODULES = {
    "conf": """
        class Settings:
            def __init__(self):
                self.rate = 1

        settings = Settings()
    """,
    "logs": """
        import threading

        class Logger:
            def __init__(self):
                self.lock = threading.Lock()
                self.lines = []

            def info(self, line):
                with self.lock:
                    self.lines.append(line)
                return len(self.lines)

        logger = Logger()
    """,
    "consts": "K = 42\n",
}

# -- state of the script, changed by functions -------------------------------------------------

program(
    "store",
    """
    store = {}

    def store_put(key, value):
        store[key] = value

    def store_get(key):
        return store.get(key)

    def check_store(run):
        run(store_put, "a", 1)
        return run(store_get, "a"), store_get("a")
    """,
    threads=[1, 1],
    workers=[1, None],
    members=[1, None],
)
program(
    "counter",
    """
    counted = 0
    counted_twice = None

    def count_up():
        global counted, counted_twice
        counted += 1
        counted_twice = 2 * counted
        return counted, counted_twice

    def check_counter(run):
        return [run(count_up) for _ in range(3)], counted
    """,
    threads=[[[1, 2], [2, 4], [3, 6]], 3],
    workers=[[[1, 2], [2, 4], [3, 6]], 0],
    members=[[[1, 2], [2, 4], [3, 6]], 0],
)
program(
    "containers",
    """
    import array
    import collections
    import heapq

    seen_list, seen_set, seen_bytes = [], set(), bytearray()
    seen_deque = collections.deque(maxlen=9)
    seen_default = collections.defaultdict(list)
    seen_counter = collections.Counter()
    seen_ordered = collections.OrderedDict()
    seen_array = array.array("i")
    seen_heap = []

    def fill_containers(n):
        seen_list.append(n)
        seen_set.add(n)
        seen_bytes.append(n)
        seen_deque.append(n)
        seen_default["a"].append(n)
        seen_counter["a"] += 1
        seen_ordered[n] = n
        seen_array.append(n)
        heapq.heappush(seen_heap, -n)
        sizes = [len(each) for each in (seen_list, seen_set, seen_bytes, seen_deque, seen_ordered)]
        return sizes, seen_default["a"], seen_counter["a"], list(seen_array), seen_heap[0]

    def check_containers(run):
        return [json.loads(json.dumps(run(fill_containers, n))) for n in range(3)][-1]
    """,
    [[3, 3, 3, 3, 3], [0, 1, 2], 3, [0, 1, 2], -2],
)
program(
    "own_objects",
    """
    import itertools
    import types

    class Tally:
        made = 0

        def __init__(self):
            self.value = 0
            Tally.made += 1

        def add(self):
            self.value += 1
            return self.value

    tally = Tally()
    space = types.SimpleNamespace(n=0)
    numbers = itertools.count()

    def use_objects():
        space.n += 1
        Tally()
        return tally.add(), space.n, next(numbers), Tally.made

    def check_own_objects(run):
        return [run(use_objects) for _ in range(3)]
    """,
    [[1, 1, 0, 2], [2, 2, 1, 3], [3, 3, 2, 4]],
)
program(
    "function_state",
    """
    import functools

    def remember(n, found=[]):
        found.append(n)
        return len(found)

    def remember_by_keyword(n, *, found={}):
        found[n] = n
        return len(found)

    def called():
        called.times += 1
        return called.times

    called.times = 0

    @functools.lru_cache
    def connection():
        opened.append(1)
        return object()

    opened = []

    def connections():
        connection()
        return len(opened), connection.cache_info().hits

    def memoize(function):
        cache = {}
        def wrapper(n):
            if n not in cache:
                cache[n] = function(n)
            return cache[n], len(cache)
        return wrapper

    @memoize
    def slow(n):
        return n * n

    def use_function_state(n):
        return remember(n), remember_by_keyword(n), called(), *connections(), *slow(n)

    def check_function_state(run):
        return [run(use_function_state, n) for n in range(3)]
    """,
    [[1, 1, 1, 1, 0, 0, 1], [2, 2, 2, 1, 1, 1, 2], [3, 3, 3, 1, 2, 4, 3]],
)
program(
    "function_state_called_itself",
    """
    import functools

    def gather(n, found=[]):
        found.append(n)
        return found

    def numbered():
        numbered.times += 1
        return numbered.times

    numbered.times = 0

    @functools.lru_cache
    def expensive(n):
        expensive_calls.append(n)
        return len(expensive_calls)

    expensive_calls = []

    def memo(function):
        cache = {}
        @functools.wraps(function)
        def memo_wrapper(n):
            cache[n] = function(n)
            return len(cache)
        return memo_wrapper

    @memo
    def squared(n):
        return n * n

    def check_function_state_called_itself(run):
        found = [[*run(gather, 1), *run(gather, 2)], [run(numbered) for _ in range(3)]]
        return [*found, [run(expensive, 7) for _ in range(3)], [run(squared, n) for n in range(3)]]
    """,
    [[1, 1, 2], [1, 2, 3], [1, 1, 1], [1, 2, 3]],
)
program(
    "random_streams",
    """
    import random

    stream = random.Random(0)

    def draw():
        return stream.random()

    def check_random_streams(run):
        expected = random.Random(0)
        return [run(draw) == expected.random() for _ in range(3)]
    """,
    [True, True, True],
)
program(
    "registry",
    """
    registry = {}

    def registered(function):
        registry[function.__name__] = function
        return function

    @registered
    def plus(a, b):
        return a + b

    @registered
    class Accumulator:
        total = 0

        def add(self, n):
            Accumulator.total += n
            return Accumulator.total

    def dispatch(name, *args):
        return registry[name](*args)

    def accumulate(n):
        return registry["Accumulator"]().add(n), registry["Accumulator"] is Accumulator

    def check_registry(run):
        return run(dispatch, "plus", 1, 2), run(accumulate, 2), run(accumulate, 3)
    """,
    [3, [2, True], [5, True]],
)
program(
    "first_use",
    """
    class LazyModel:
        def __init__(self):
            self.steps = 0

    lazy_model = None
    loads = 0

    def get_model():
        global lazy_model, loads
        if lazy_model is None:
            loads += 1
            lazy_model = LazyModel()
        return lazy_model

    def train_step():
        model = get_model()
        model.steps += 1
        return loads, model.steps

    def new_name():
        global made_by_task
        made_by_task = [1]

    def use_new_name():
        made_by_task.append(2)
        return made_by_task

    def drop_new_name():
        global made_by_task
        del made_by_task

    def check_first_use(run):
        steps = [run(train_step) for _ in range(3)]
        run(new_name)
        names = list(run(use_new_name))
        run(drop_new_name)
        return steps, names, attempt(run, use_new_name)
    """,
    [[[1, 1], [1, 2], [1, 3]], [1, 2], Raises("NameError", "made_by_task")],
    ways={
        "original_torch_rpc": [
            [[1, 1], [1, 2], [1, 3]],
            [1, 2],
            Raises("RuntimeError", "made_by_task"),
        ]
    },
)
program(
    "primitives",
    """
    import contextvars
    import queue
    import threading
    from concurrent.futures import ThreadPoolExecutor

    lock, rlock = threading.Lock(), threading.RLock()
    semaphore, condition = threading.Semaphore(2), threading.Condition()
    event, barrier = threading.Event(), threading.Barrier(1)
    inbox, simple, stack = queue.Queue(5), queue.SimpleQueue(), queue.LifoQueue()
    local, variable = threading.local(), contextvars.ContextVar("variable", default=7)
    helpers = ThreadPoolExecutor(1)

    def use_primitives():
        with lock, rlock, semaphore, condition:
            condition.notify_all()
        barrier.wait(5)
        local.value = 1
        return variable.get(), helpers.submit(abs, -3).result(), inbox.maxsize

    def leave(n):
        event.set()
        inbox.put(n)
        simple.put(n)
        stack.put(n)
        return lock.acquire(False)

    def find():
        values = inbox.get_nowait(), simple.get_nowait(), stack.get_nowait()
        lock.release()
        return values, event.is_set()

    def check_primitives(run):
        lock.acquire()
        free = run(lock_is_free)
        lock.release()
        return free, run(use_primitives), run(leave, 3), run(find), event.is_set()

    def lock_is_free():
        return not lock.locked()
    """,
    threads=[False, [7, 3, 5], True, [[3, 3, 3], True], True],
    workers=[True, [7, 3, 5], True, [[3, 3, 3], True], False],
    members=[True, [7, 3, 5], True, [[3, 3, 3], True], False],
)
program(
    "guarded_state",
    """
    import threading

    class Account:
        def __init__(self):
            self.lock = threading.Lock()
            self.balance = 0

    account = Account()
    accounts_lock = threading.Lock()
    not_empty, not_full = threading.Condition(accounts_lock), threading.Condition(accounts_lock)

    def deposit(amount):
        with account.lock, not_full:
            account.balance += amount
            not_empty.notify()
        with accounts_lock:
            return account.balance, not_empty._lock is not_full._lock is accounts_lock

    def check_guarded_state(run):
        return [run(deposit, 5) for _ in range(3)]
    """,
    [[5, True], [10, True], [15, True]],
)

# -- what the caller changes -------------------------------------------------------------------

program(
    "caller_rebinds",
    """
    current_step = -1
    current_rates = {"lr": 0}

    def at_step():
        return current_step, current_rates["lr"]

    def check_caller_rebinds(run):
        global current_step, current_rates
        found = [run(at_step)]
        for current_step in range(3):
            current_rates = {"lr": current_step}
            found.append(run(at_step))
        return found
    """,
    threads=[[-1, 0], [0, 0], [1, 1], [2, 2]],
    workers=[[-1, 0], [0, 0], [1, 1], [2, 2]],
    members=[[-1, 0], [-1, 0], [-1, 0], [-1, 0]],
    ways={"executor_spawn": [[-1, 0]] * 4},
)
program(
    "caller_changes_in_place",
    """
    class Schedule:
        def __init__(self):
            self.rate = 0

    schedule, history, untouched = Schedule(), [], []

    def see_changes():
        history.append("task")
        untouched.append("task")
        return schedule.rate, list(history), len(untouched)

    def check_caller_changes_in_place(run):
        found = [run(see_changes), run(see_changes)]
        schedule.rate = 1
        history.append("caller")
        return [*found, run(see_changes)]
    """,
    threads=[
        [0, ["task"], 1],
        [0, ["task", "task"], 2],
        [1, ["task", "task", "caller", "task"], 3],
    ],
    workers=[[0, ["task"], 1], [0, ["task", "task"], 2], [1, ["caller", "task"], 3]],
    members=[[0, ["task"], 1], [0, ["task", "task"], 2], [0, ["task", "task", "task"], 3]],
    ways={
        "executor_spawn": [[0, ["task"], 1], [0, ["task", "task"], 2], [0, ["task"] * 3, 3]],
    },
)
program(
    "caller_begins_anew",
    """
    visited = set()
    pending = []

    def visit(item):
        is_new = item not in visited
        visited.add(item)
        pending.append(item)
        return is_new, len(pending)

    def check_caller_begins_anew(run):
        global visited, pending
        found = []
        for _ in range(2):
            visited, pending = set(), []
            found.append([run(visit, each) for each in "aba"])
        return found
    """,
    threads=[[[True, 1], [True, 2], [False, 3]]] * 2,
    workers=[[[True, 1], [True, 2], [False, 3]]] * 2,
    members=[[[True, 1], [True, 2], [False, 3]], [[False, 4], [False, 5], [False, 6]]],
    differs="workers of an executor do not follow their caller",
)
program(
    "caller_changes_code",
    """
    def rule(n):
        return n + 1

    def apply_rule(n):
        return rule(n)

    class Policy:
        def act(self):
            return "old"

    def act():
        return Policy().act()

    def check_caller_changes_code(run):
        before = run(apply_rule, 1), run(act), run(rule, 1)
        new = "def rule(n): return n + 10\\nclass Policy:\\n def act(self): return 'new'"
        exec(new, globals())
        return before, (run(apply_rule, 1), run(act), run(rule, 1))
    """,
    [[2, "old", 2], [11, "new", 11]],
    differs="originals send code by name",
)
program(
    "caller_changes_attributes",
    """
    class Config:
        lr = 0.1
        steps = 0

    def tuned(n=1):
        Config.steps += 1
        tuned.calls += 1
        return Config.lr, Config.steps, tuned.factor, tuned.calls, n

    tuned.factor, tuned.calls = 1, 0

    def check_caller_changes_attributes(run):
        found = [run(tuned)]
        Config.lr = 0.2
        found.append(run(tuned))
        tuned.factor = 2
        found.append(run(tuned))
        tuned.__defaults__ = (5,)
        return [*found, run(tuned)]
    """,
    threads=[[0.1, 1, 1, 1, 1], [0.2, 2, 1, 2, 1], [0.2, 3, 2, 3, 1], [0.2, 4, 2, 4, 5]],
    workers=[[0.1, 1, 1, 1, 1], [0.2, 2, 1, 2, 1], [0.2, 3, 2, 3, 1], [0.2, 4, 2, 4, 5]],
    members=[[0.1, 1, 1, 1, 1], [0.1, 2, 1, 2, 1], [0.1, 3, 1, 3, 1], [0.1, 4, 1, 4, 1]],
    ways={
        "executor_spawn": [
            [0.1, 1, 1, 1, 1],
            [0.1, 2, 1, 2, 1],
            [0.1, 3, 1, 3, 1],
            [0.1, 4, 1, 4, 1],
        ]
    },
)
program(
    "caller_deletes",
    """
    temporary = 1

    def see_temporary():
        try:
            return temporary
        except NameError:
            return None

    def check_caller_deletes(run):
        global temporary
        before = run(see_temporary)
        del temporary
        return before, run(see_temporary)
    """,
    threads=[1, None],
    workers=[1, 1],
    members=[1, 1],
)
program(
    "arguments",
    """
    class Ledger:
        def __init__(self):
            self.rows = []

        def add(self, row):
            self.rows.append(row)
            return len(self.rows)

    ledger = Ledger()

    def add_to(given, row):
        return given.add(row), given is ledger

    def rows():
        return len(ledger.rows)

    def check_arguments(run):
        added = run(add_to, ledger, 1), run(ledger.add, 2)
        return added, run(rows), len(ledger.rows)
    """,
    threads=[[[1, True], 2], 2, 2],
    workers=[[[1, False], 1], 0, 0],
    members=[[[1, False], 1], 0, 0],
    ways={"local": [[[1, False], 1], 0, 0]},
)

# -- identity ----------------------------------------------------------------------------------

program(
    "identity",
    """
    def helper(n):
        return n

    TABLE = {helper: "found"}

    class Kind:
        pass

    Alias, also_helper = Kind, helper

    def is_helper(function):
        return function is helper, TABLE.get(function), function is also_helper

    def give_helper():
        return helper

    def is_kind(value, kind):
        return isinstance(value, Kind), kind is Kind, Alias is Kind, type(value) is Alias

    def give_kind():
        return Kind(), Kind

    def check_identity(run):
        value, kind = run(give_kind)
        return {
            "function sent": run(is_helper, helper),
            "function returned": run(give_helper) is helper,
            "class sent": run(is_kind, Kind(), Kind),
            "class returned": [type(value) is Kind, kind is Kind],
        }
    """,
    {
        "function sent": [True, "found", True],
        "function returned": True,
        "class sent": [True, True, True, True],
        "class returned": [True, True],
    },
)
program(
    "sentinels",
    """
    import dataclasses
    import enum

    ABSENT = object()

    class Color(enum.Enum):
        RED = enum.auto()
        GREEN = enum.auto()

    @dataclasses.dataclass
    class Options:
        value: object = ABSENT
        color: Color = Color.RED
        items: list = dataclasses.field(default_factory=list)

    def is_absent(value=ABSENT, *, other=ABSENT):
        return value is ABSENT, other is ABSENT

    def options_of(given):
        return Options().value is ABSENT, given.color is Color.GREEN, Options() == Options()

    def check_sentinels(run):
        return run(is_absent), run(is_absent, 1), run(options_of, Options(1, Color.GREEN))
    """,
    [[True, True], [False, True], [True, True, True]],
)
program(
    "shared_objects",
    """
    shared_rows = []
    by_name, in_order = {"rows": shared_rows}, [shared_rows]

    def grow_shared():
        shared_rows.append(1)
        return len(by_name["rows"]), len(in_order[0]), by_name["rows"] is in_order[0]

    def grow_by_name():
        by_name["rows"].append(1)
        return len(shared_rows)

    def check_shared_objects(run):
        return run(grow_shared), run(grow_by_name), run(grow_shared)
    """,
    [[1, 1, True], 2, [3, 3, True]],
)
program(
    "exceptions",
    """
    class Refused(ValueError):
        def __init__(self, code, *, detail):
            super().__init__(code)
            self.code, self.detail = code, detail

        def __reduce__(self):
            return rebuild_refused, (self.code, self.detail)

    def rebuild_refused(code, detail):
        return Refused(code, detail=detail)

    def refuse(code):
        raise Refused(code, detail="no")

    def catch(code):
        try:
            refuse(code)
        except Refused as error:
            return error.code

    def check_exceptions(run):
        try:
            run(refuse, 3)
        except Refused as error:
            return error.code, error.detail, run(catch, 4)
    """,
    [3, "no", 4],
    ways={"original_torch_rpc": Raises("RuntimeError", "Failed to create original exception")},
)

# -- kinds of functions and classes ------------------------------------------------------------

program(
    "decorated",
    """
    import contextlib
    import functools
    import typing

    @contextlib.contextmanager
    def opened_for(n):
        managed.append(n)
        yield sum(managed)

    managed = []

    def traced(function):
        @functools.wraps(function)
        def traced_wrapper(*args):
            traces.append(function.__name__)
            return function(*args)
        return traced_wrapper

    traces = []

    @traced
    def traced_sum(*args):
        return sum(args), len(traces)

    @functools.singledispatch
    def describe(value):
        return "object"

    @describe.register
    def _(value: int):
        return "int"

    Meters = typing.NewType("Meters", int)
    add_five = functools.partial(traced_sum, 5)

    def use_decorated(n):
        with opened_for(n) as total:
            return total, traced_sum(n, 1), describe(n), describe(""), Meters(n), add_five(n)

    def check_decorated(run):
        return run(use_decorated, 1), run(use_decorated, 2), run(traced_sum, 1), run(add_five, 1)
    """,
    [
        [1, [2, 1], "int", "object", 1, [6, 2]],
        [3, [3, 3], "int", "object", 2, [7, 4]],
        [1, 5],
        [6, 6],
    ],
    differs="two functions named _ are no functions of the original, which sends them by name",
)
program(
    "classes",
    """
    import abc
    import collections
    import functools
    import typing

    class Plugin:
        known = {}

        def __init_subclass__(cls, *, tag):
            super().__init_subclass__()
            Plugin.known[tag] = cls

    class Meta(type):
        count = 0

        def __init__(cls, *args):
            super().__init__(*args)
            Meta.count += 1

    class First(Plugin, tag="first"):
        pass

    class Second(First, tag="second"):
        pass

    class Counted(metaclass=Meta):
        pass

    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

    class Square(Shape):
        __slots__ = ("side",)

        def __init__(self, side):
            self.side = side

        def area(self):
            return self.side ** 2

        @property
        def double(self):
            return 2 * self.side

        @classmethod
        def unit(cls):
            return cls(1)

        @staticmethod
        def sides():
            return 4

    Pair = collections.namedtuple("Pair", "left right")

    class Row(typing.NamedTuple):
        n: int = 1

    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        class Lid:
            pass

        def __init__(self, value: T):
            self.value = value

        @functools.cached_property
        def cached(self):
            return self.value + 1

    def use_classes(square):
        return (
            sorted(Plugin.known), Plugin.known["second"] is Second, Meta.count, square.area(),
            square.double, Square.unit().area(), Square.sides(), Pair(1, 2)._asdict(), Row().n,
            Box[int](4).cached, Box.Lid.__qualname__, issubclass(Second, First),
            attempt_shape(),
        )

    def attempt_shape():
        try:
            Shape()
        except TypeError:
            return "abstract"

    def check_classes(run):
        return run(use_classes, Square(3)), run(use_classes, Square.unit())[:3]
    """,
    [
        [
            ["first", "second"],
            True,
            1,
            9,
            6,
            1,
            4,
            {"left": 1, "right": 2},
            1,
            5,
            "Box.Lid",
            True,
            "abstract",
        ],
        [["first", "second"], True, 1],
    ],
)
program(
    "pydantic_models",
    """
    import pydantic

    class Point(pydantic.BaseModel):
        x: int
        label: str = "none"

        @pydantic.field_validator("x")
        @classmethod
        def positive(cls, value):
            if value < 0:
                raise ValueError("negative")
            return value

        def moved(self, by):
            return Point(x=self.x + by)

    def move(point, by):
        return point.moved(by)

    def check_pydantic_models(run):
        moved = run(move, Point(x=1), 2)
        return moved.x, type(moved) is Point, attempt(run, move, Point(x=1), -5)[:15]
    """,
    [3, True, "ValidationError"],
    ways={"original_torch_rpc": [3, True, "RuntimeError: R"]},
)
program(
    "c_structures",
    """
    import ctypes

    class Header(ctypes.Structure):
        _fields_ = [("size", ctypes.c_int), ("kind", ctypes.c_uint8)]

    def size_of_header():
        return ctypes.sizeof(Header), Header(3, 4).kind

    def size_in(header):
        return header.size, isinstance(header, Header)

    def check_c_structures(run):
        return run(size_of_header), run(size_in, Header(5, 6))
    """,
    [[8, 4], [5, True]],
)
program(
    "closures",
    """
    def make_counter():
        n = 0
        def counter_of_closure():
            nonlocal n
            n += 1
            return n
        return counter_of_closure

    closure = make_counter()

    def use_closure():
        return closure()

    def check_closures(run):
        local = make_counter()
        return [run(use_closure) for _ in range(2)], [run(local) for _ in range(2)], run(lambda: 7)
    """,
    threads=[[1, 2], [1, 2], 7],
    workers=[[1, 2], [1, 1], 7],
    members=[[1, 2], [1, 1], 7],
    ways={"local": [[1, 2], [1, 1], 7]},
    differs="originals refuse local functions",
)
program(
    "recursion",
    """
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    class Node:
        def __init__(self, depth):
            self.child = Node(depth - 1) if depth else None
            self.parent = self

    def depth_of(node):
        return 0 if node is None else 1 + depth_of(node.child)

    def check_recursion(run):
        return run(even, 10), run(depth_of, Node(5))
    """,
    [True, 6],
)
program(
    "imports",
    """
    import math as m
    import os.path
    from collections import OrderedDict as OD
    from consts import K

    import consts

    def use_imports():
        return m.floor(2.5), os.path.basename("/a/b"), list(OD(a=1)), K, consts.K

    def import_inside():
        import consts as inside
        inside.changed = getattr(inside, "changed", 0) + 1
        return inside.changed

    def check_imports(run):
        return run(use_imports), run(import_inside), run(import_inside)
    """,
    [[2, "b", ["a"], 42, 42], 1, 2],
)
program(
    "names_in_text",
    """
    def cube(n):
        return n ** 3

    class Tag:
        pass

    CUBES = 2

    def by_eval():
        return eval("cube(3)")

    def by_globals():
        return globals()["cube"](2), globals()["Tag"].__name__

    def by_module():
        return getattr(sys.modules[__name__], "cube")(4)

    def by_exec():
        space = {}
        exec("found = cube(1)", globals(), space)
        return space["found"]

    def value_by_eval():
        return eval("CUBES")

    def check_names_in_text(run):
        return run(by_eval), run(by_globals), run(by_module), run(by_exec)
    """,
    [27, [8, "Tag"], 64, 1],
    needs_main=True,
)
program(
    "values_in_text",
    """
    HIDDEN = 2

    def hidden_value():
        return eval("HIDDEN")

    def check_values_in_text(run):
        return attempt(run, hidden_value)
    """,
    threads=2,
    workers=Raises("NameError", "HIDDEN"),
    members=Raises("NameError", "HIDDEN"),
    ways={"fork": 2},
    differs="originals import the script, and so have all its values",
    needs_main=True,
)
program(
    "generators",
    """
    def stream_of(n):
        yield from range(n)

    def use_stream(n):
        return sum(stream_of(n))

    def check_generators(run):
        return run(use_stream, 4), attempt(lambda function: list(run(function, 3)), stream_of)
    """,
    threads=[6, [0, 1, 2]],
    workers=[6, Raises("SerializationError", "imap")],
    members=[6, Raises("SerializationError", "return a list")],
    ways={"local": [6, Raises("SerializationError", "return a list")]},
    differs="originals raise a TypeError",
)
program(
    "main_module",
    """
    NAMES = "__builtins__", "__name__", "__package__", "__spec__", "__doc__", "__file__"

    def look_at_main():
        import __main__
        main = sys.modules["__main__"]
        here = globals()
        names = [each for each in NAMES if hasattr(main, each)]
        same = main is __main__, here is main.__dict__
        return same, names, __name__, __package__

    class Here:
        pass

    def look_at_class():
        return Here.__module__, sys.modules[Here.__module__].Here is Here

    def check_main_module(run):
        (same, names, *rest), of_class = run(look_at_main), run(look_at_class)
        # the file of a program in ``python -`` is no file
        here = {each for each in NAMES if each in globals() and globals()[each] != "<stdin>"}
        return same, here <= {*names}, rest == [__name__, __package__], of_class
    """,
    [[True, True], True, True, ["__main__", True]],
    differs="__name__ is __mp_main__ in a child of multiprocessing",
    needs_main=True,
)

# -- what hangs together ------------------------------------------------------------------------

program(
    "objects_within_others",
    """
    import functools

    class Journal:
        def __init__(self):
            self.rows = []

        def add(self, row):
            self.rows.append(row)
            return len(self.rows)

    journal = Journal()
    SHARED = journal.rows
    record = journal.add
    add_zero = functools.partial(journal.add, 0)

    def into(rows):
        def inner(row):
            rows.append(row)
            return len(rows)
        return inner

    append_row = into(SHARED)

    def by_default(row, rows=SHARED):
        rows.append(row)
        return len(rows)

    class Keeper:
        rows = SHARED

    def all_ways():
        return (
            record(1), add_zero(), append_row(2), by_default(3), journal.add(4), len(SHARED),
            Keeper.rows is SHARED is journal.rows,
        )

    def one_way(name):
        return {"record": record, "add_zero": lambda _: add_zero(), "default": by_default}[name](1)

    def check_objects_within_others(run):
        found = [run(all_ways), run(one_way, "record"), run(one_way, "add_zero")]
        return [*found, run(one_way, "default"), run(all_ways), len(journal.rows)]
    """,
    threads=[[1, 2, 3, 4, 5, 5, True], 6, 7, 8, [9, 10, 11, 12, 13, 13, True], 13],
    workers=[[1, 2, 3, 4, 5, 5, True], 6, 7, 8, [9, 10, 11, 12, 13, 13, True], 0],
    members=[[1, 2, 3, 4, 5, 5, True], 6, 7, 8, [9, 10, 11, 12, 13, 13, True], 0],
)
program(
    "caller_connects_and_splits",
    """
    left = right = []

    def one_list():
        left.append(1)
        return left is right, len(left), len(right)

    def check_caller_connects_and_splits(run):
        global left, right
        found = [run(one_list)]
        right = []
        found.append(run(one_list))
        left = right
        return [*found, run(one_list)]
    """,
    threads=[[True, 1, 1], [False, 2, 0], [True, 1, 1]],
    workers=[[True, 1, 1], [False, 2, 0], [True, 1, 1]],
    members=[[True, 1, 1], [True, 2, 2], [True, 3, 3]],
    ways={"executor_spawn": [[True, 1, 1], [True, 2, 2], [True, 3, 3]]},
)
program(
    "application",
    """
    class App:
        def __init__(self, name):
            self.name, self.routes, self.calls = name, {}, 0

        def route(self, path):
            def add(function):
                self.routes[path] = function
                return function
            return add

        def handle(self, path, *args):
            self.calls += 1
            return self.routes[path](*args)

    app = App("users")

    @app.route("/double")
    def double_route(n):
        return 2 * n, app.calls, app.name

    @app.route("/again")
    def again_route(n):
        return app.handle("/double", n + 1)

    @app.route("/self")
    def self_route(n):
        return app.routes["/self"] is self_route, list(app.routes)

    def handle(path, n):
        return app.handle(path, n)

    def check_application(run):
        return run(handle, "/double", 1), run(handle, "/again", 1), run(handle, "/self", 0), (
            run(double_route, 4)
        )
    """,
    [
        [2, 1, "users"],
        [4, 3, "users"],
        [True, ["/double", "/again", "/self"]],
        [8, 4, "users"],
    ],
)
program(
    "odd_functions",
    """
    import asyncio
    import builtins
    import functools
    import json as of_other_module

    @functools.wraps(of_other_module.dumps)
    def dumps(value):
        return "own " + str(value), own_calls()

    calls_of_own = []

    def own_calls():
        calls_of_own.append(1)
        return len(calls_of_own)

    factorial = lambda n: 1 if n < 2 else n * factorial(n - 1)
    TABLE_OF_LAMBDAS = {"inc": lambda n: n + 1, "dec": lambda n: n - 1}
    license = 5

    def input(*args):
        return ("asked", *args)

    async def wait_for(n):
        await asyncio.sleep(0)
        return n + license

    def use_odd(n):
        return (
            dumps(n), factorial(n), TABLE_OF_LAMBDAS["inc"](n), TABLE_OF_LAMBDAS["dec"](n), license,
            input(n), asyncio.run(wait_for(n)), builtins.license is not license,
        )

    def varied(a, /, b=2, *args, c, d=4, **kwargs):
        return a, b, args, c, d, kwargs

    def use_varied():
        return varied(1, c=3), varied(1, 5, 6, c=7, e=8)

    def check_odd_functions(run):
        return run(use_odd, 3), run(dumps, 1) if run(own_calls) else None, run(use_varied)
    """,
    [
        [["own 3", 1], 6, 4, 2, 5, ["asked", 3], 8, True],
        ["own 1", 3],
        [[1, 2, [], 3, 4, {}], [1, 5, [6], 7, 4, {"e": 8}]],
    ],
    differs="the original takes dumps for the function of json",
)
program(
    "records",
    """
    import attrs
    import dataclasses
    import enum

    class Mode(enum.Flag):
        READ = enum.auto()
        WRITE = enum.auto()

        def is_full(self):
            return self == Mode.READ | Mode.WRITE

    @dataclasses.dataclass(frozen=True, slots=True, order=True)
    class Key:
        a: int
        b: int = dataclasses.field(default=2, kw_only=True)

        def larger(self):
            return dataclasses.replace(self, a=self.a + 1)

    @attrs.define
    class Part:
        n: int
        tags: list = attrs.Factory(list)

        def __attrs_post_init__(self):
            made_parts.append(self.n)

    @attrs.define
    class Wheels(Part):
        def described(self):
            return super().__repr__()

    made_parts = []
    cached = {Key(1): "one"}

    def use_records(key, mode):
        wheels = Wheels(4)
        return (
            cached[key], key.larger() > key, isinstance(key, Key), mode is Mode.WRITE,
            (mode | Mode.READ).is_full(), wheels.described(), len(made_parts),
        )

    def give_records():
        return Key(1), Mode.READ, Wheels(1)

    def check_records(run):
        key, mode, wheels = run(give_records)
        same = type(key) is Key, mode is Mode.READ, type(wheels) is Wheels, cached[key]
        return same, run(use_records, Key(1), Mode.WRITE), run(use_records, key, Mode.WRITE)
    """,
    [
        [True, True, True, "one"],
        ["one", True, True, True, True, "Wheels(n=4, tags=[])", 2],
        ["one", True, True, True, True, "Wheels(n=4, tags=[])", 3],
    ],
)
program(
    "numpy_state",
    """
    import numpy

    rng = numpy.random.default_rng(0)
    weights = numpy.zeros(3)
    same_weights = weights

    def draw_numpy():
        return rng.random()

    def step_numpy():
        weights[:] += 1
        return weights.tolist(), weights is same_weights

    def read_numpy():
        return weights.tolist()

    def check_numpy_state(run):
        expected = numpy.random.default_rng(0)
        drawn = [run(draw_numpy) == expected.random() for _ in range(3)]
        found = [drawn, run(step_numpy), run(step_numpy)]
        weights[0] = 10
        return [*found, run(read_numpy)]
    """,
    threads=[[True] * 3, [[1.0] * 3, True], [[2.0] * 3, True], [10.0, 2.0, 2.0]],
    workers=[[True] * 3, [[1.0] * 3, True], [[2.0] * 3, True], [10.0, 0.0, 0.0]],
    members=[[True] * 3, [[1.0] * 3, True], [[2.0] * 3, True], [2.0, 2.0, 2.0]],
    ways={"executor_spawn": [[True] * 3, [[1.0] * 3, True], [[2.0] * 3, True], [2.0] * 3]},
    imports=("numpy",),
)
program(
    "failing_tasks",
    """
    progress = []
    attempts = 0

    class Stopped(Exception):
        pass

    def fail_at(n):
        global attempts
        attempts += 1
        progress.append(n)
        if n % 2:
            raise Stopped(n, len(progress))
        return attempts, len(progress)

    def check_failing_tasks(run):
        found = []
        for n in range(4):
            try:
                found.append(run(fail_at, n))
            except Stopped as error:
                found.append(error.args)
        return found
    """,
    [[1, 1], [1, 2], [3, 3], [3, 4]],
    ways={
        "original_torch_rpc": Raises("RuntimeError", "Stopped"),
    },
)

# -- what cannot be pickled --------------------------------------------------------------------

program(
    "placeholders",
    """
    import socket
    import sqlite3
    import tempfile

    log = open(os.path.join(tempfile.mkdtemp(), "log.txt"), "w")
    conn = sqlite3.connect(":memory:")
    sock = socket.socket()
    sock.close()
    gen = (n for n in range(3))

    class Reporter:
        def write(self):
            return log.write("abc")

        def count(self):
            return 5

        def query(self):
            return conn.execute("select 1").fetchone()[0]

    def report(name):
        return getattr(Reporter(), name)()

    def next_of_gen():
        return next(gen)

    def family():
        return sock.family.name

    def check_placeholders(run):
        return [
            run(report, "count"), attempt(run, report, "write"), attempt(run, report, "query"),
            attempt(run, next_of_gen), attempt(run, family),
        ]
    """,
    threads=[5, 3, Raises("ProgrammingError"), 0, "AF_INET"],
    workers=[
        5,
        Raises("SerializationError", "global log of __main__ (TextIOWrapper)"),
        Raises("SerializationError", "global conn of __main__ (sqlite3.Connection)"),
        Raises("SerializationError", "global gen of __main__ (generator)"),
        Raises("SerializationError", "global sock of __main__ (socket.socket)"),
    ],
    members=[
        5,
        Raises("SerializationError", "global log of __main__ (TextIOWrapper)"),
        Raises("SerializationError", "global conn of __main__ (sqlite3.Connection)"),
        Raises("SerializationError", "global gen of __main__ (generator)"),
        Raises("SerializationError", "global sock of __main__ (socket.socket)"),
    ],
    ways={"fork": [5, 3, 1, 0, "AF_INET"]},
    differs="originals import the script, and so open everything anew",
    needs_main=True,
)
program(
    "class_attributes",
    """
    class Recorder:
        stream = open(os.devnull, "w")

        def count(self):
            return 5

        def write(self):
            return self.stream.write("abc")

    recorder = Recorder()

    def use_recorder(name):
        return getattr(recorder, name)(), getattr(Recorder(), name)()

    def check_class_attributes(run):
        return run(use_recorder, "count"), attempt(run, use_recorder, "write")
    """,
    threads=[[5, 5], [3, 3]],
    workers=[[5, 5], Raises("SerializationError", "Recorder.stream of __main__")],
    members=[[5, 5], Raises("SerializationError", "Recorder.stream of __main__")],
    ways={"fork": [[5, 5], [3, 3]]},
    differs="originals import the script, and so open everything anew",
    needs_main=True,
)
program(
    "refused_arguments",
    """
    import threading
    import weakref

    class Holder:
        def __init__(self, value):
            self.inner = {"a": [0, value]}

    class Weak:
        pass

    weak_target = Weak()

    def take(value, *more):
        return 1

    def check_refused_arguments(run):
        holder = Holder(threading.Lock())
        return [
            attempt(run, take, holder),
            attempt(run, take, 1, [threading.Lock()]),
            attempt(run, take, weakref.ref(weak_target)),
        ]
    """,
    threads=[1, 1, 1],
    workers=[
        Raises("SerializationError", "args[0].inner['a'][1] (threading.Lock)"),
        Raises("SerializationError", "args[1][0] (threading.Lock)"),
        Raises("SerializationError", "args[0] ("),
    ],
    members=[
        Raises("SerializationError", "args[0].inner['a'][1] (threading.Lock)"),
        Raises("SerializationError", "args[1][0] (threading.Lock)"),
        Raises("SerializationError", "args[0] ("),
    ],
    ways={
        "local": [
            Raises("SerializationError", "args[0].inner['a'][1] (threading.Lock)"),
            Raises("SerializationError", "args[1][0] (threading.Lock)"),
            Raises("SerializationError", "args[0] ("),
        ],
    },
    differs="originals raise a TypeError without a path",
)
program(
    "refused_results",
    """
    import threading

    result_lock = threading.Lock()

    def give_lock():
        return {"lock": result_lock}

    def check_refused_results(run):
        return attempt(lambda function: type(run(function)).__name__, give_lock)
    """,
    threads="dict",
    workers=Raises("SerializationError", "['lock'] (threading.Lock)"),
    members=Raises("SerializationError", "['lock'] (threading.Lock)"),
    ways={"local": Raises("SerializationError", "['lock'] (threading.Lock)")},
    differs="originals raise a TypeError without a path",
)
program(
    "nothing_is_pickled_among_threads",
    """
    class Unpicklable:
        def __reduce__(self):
            raise RuntimeError("pickled")

        n = 3

    unpicklable = Unpicklable()
    unpicklable_default = lambda value=Unpicklable(): value.n

    def of_unpicklable():
        return unpicklable.n

    def check_nothing_is_pickled_among_threads(run):
        inside = Unpicklable()
        named = run(of_unpicklable), run(unpicklable_default)
        return named, attempt(run, lambda: inside.n)
    """,
    threads=[[3, 3], 3],
    # a call between members copies what a function closes over
    ways={"local": [[3, 3], Raises("SerializationError", "closing over inside")]},
)

# -- objects of importable modules -------------------------------------------------------------

program(
    "objects_of_modules",
    """
    import logging

    import conf
    import logs
    from conf import settings
    from logs import logger as log_of_module

    console = log_of_module
    python_log = logging.getLogger("of.the.script")

    def use_module_objects():
        return (
            log_of_module is logs.logger, console is log_of_module, log_of_module.info("line"),
            python_log is logging.getLogger("of.the.script"),
        )

    def settings_are_of_module():
        return settings is conf.settings

    def rate():
        return settings.rate

    def check_objects_of_modules(run):
        found = [run(use_module_objects), run(use_module_objects)]
        settings.rate = 5
        return found, run(settings_are_of_module), run(rate)
    """,
    threads=[[[True, True, 1, True], [True, True, 2, True]], True, 5],
    workers=[[[True, True, 1, True], [True, True, 2, True]], False, 5],
    members=[[[True, True, 1, True], [True, True, 2, True]], True, 1],
    ways={"executor_spawn": [[[True, True, 1, True], [True, True, 2, True]], True, 1]},
)

# -- the standard library inside a task --------------------------------------------------------

program(
    "pickled_inside",
    """
    import copy
    import io
    import pickle
    import joblib

    class Wheel:
        def __init__(self, size):
            self.size = size

        def turn(self):
            return self.size

    def spin(wheel):
        return wheel.turn()

    def pickle_inside():
        again = pickle.loads(pickle.dumps(Wheel(3)))
        function = pickle.loads(pickle.dumps(spin))
        buffer = io.BytesIO()
        joblib.dump([Wheel(4), spin], buffer)
        buffer.seek(0)
        loaded = joblib.load(buffer)
        return (
            type(again) is Wheel, again.size, function is spin, loaded[0].turn(),
            loaded[1] is spin, copy.deepcopy(Wheel(5)).turn(), copy.deepcopy(spin) is spin,
            pickle.loads(pickle.dumps(Wheel(6).turn))(),
        )

    def check_pickled_inside(run):
        return run(pickle_inside)
    """,
    [True, 3, True, 4, True, 5, True, 6],
    needs_main=True,
)
program(
    "hints_inside",
    """
    import dataclasses
    import inspect
    import typing

    class Engine:
        power = 3

    @dataclasses.dataclass
    class Car:
        engine: "Engine"
        spare: "Engine | None" = None
        doors: "typing.ClassVar[int]" = 4

    def drive(car: "Car", fast: "bool" = True) -> "Engine":
        return car.engine

    def hints_inside():
        hints = typing.get_type_hints(drive)
        fields = typing.get_type_hints(Car)
        return (
            hints["car"] is Car, hints["return"] is Engine, fields["engine"] is Engine,
            [each.name for each in dataclasses.fields(Car)], drive(Car(Engine())).power,
            list(inspect.signature(drive).parameters), dataclasses.asdict(Car(1)),
        )

    def hints_of(function):
        return sorted(typing.get_type_hints(function))

    def check_hints_inside(run):
        return run(hints_inside), run(hints_of, drive)
    """,
    [
        [
            True,
            True,
            True,
            ["engine", "spare"],
            3,
            ["car", "fast"],
            {"engine": 1, "spare": None},
        ],
        ["car", "fast", "return"],
    ],
    needs_main=True,
)

# -- torch -------------------------------------------------------------------------------------

TORCH = ("torch",)

program(
    "torch_state",
    """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1, bias=False)
            torch.nn.init.zeros_(self.layer.weight)

        def forward(self, x):
            return self.layer(x)

    Model = Net
    net = Model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
    total = torch.zeros(1)
    view_of_total = total[:]
    draws = torch.Generator().manual_seed(0)

    def step_of_net():
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        total.add_(1)
        return net.layer.weight.flatten().tolist(), total.item(), view_of_total.item()

    def draw_of_torch():
        return torch.rand(1, generator=draws).item()

    def check_torch_state(run):
        expected = torch.Generator().manual_seed(0)
        same = [run(draw_of_torch) == torch.rand(1, generator=expected).item() for _ in range(3)]
        return same, [run(step_of_net) for _ in range(3)]
    """,
    [
        [True] * 3,
        [[[-1.0, -1.0], 1.0, 1.0], [[-2.5, -2.5], 2.0, 2.0], [[-4.25, -4.25], 3.0, 3.0]],
    ],
    imports=TORCH,
)
program(
    "torch_caller_trains",
    """
    import torch

    policy = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(policy.weight)
    sgd = torch.optim.SGD(policy.parameters(), lr=1.0)

    def evaluate(x):
        return policy(torch.tensor([x])).item()

    def optimizer_is_of_model():
        return sgd.param_groups[0]["params"][0] is policy.weight

    def check_torch_caller_trains(run):
        found = []
        for _ in range(3):
            sgd.zero_grad()
            policy(torch.ones(1)).sum().backward()
            sgd.step()
            found.append(run(evaluate, 1.0))
        return found, run(optimizer_is_of_model)
    """,
    threads=[[-1.0, -2.0, -3.0], True],
    workers=[[-1.0, -2.0, -3.0], True],
    members=[[0.0, 0.0, 0.0], True],
    ways={"executor_spawn": [[0.0, 0.0, 0.0], True]},
    imports=TORCH,
)
program(
    "torch_saved_inside",
    """
    import io

    import torch

    class Saved(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x):
            return self.layer(x)

    def save_inside():
        model, buffer = Saved(), io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        return type(loaded) is Saved, torch.equal(loaded.layer.weight, model.layer.weight)

    def save_given(model):
        torch.save(model, buffer := io.BytesIO())
        buffer.seek(0)
        return type(torch.load(buffer, weights_only=False)) is Saved

    def check_torch_saved_inside(run):
        return run(save_inside), run(save_given, Saved())
    """,
    [[True, True], True],
    imports=TORCH,
    needs_main=True,
)
program(
    "torch_loaded_inside",
    """
    import torch

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, n):
            return n * n

    def collate(items):
        return sum(items)

    def load_inside(method):
        loader = torch.utils.data.DataLoader(
            Squares(), batch_size=2, num_workers=1, collate_fn=collate,
            multiprocessing_context=method,
        )
        return list(loader)

    def check_torch_loaded_inside(run):
        return run(load_inside, "fork")
    """,
    [1, 13],
    imports=TORCH,
)
program(
    "torch_scripted",
    """
    import torch

    @torch.jit.script
    def scripted(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def use_scripted():
        return scripted(torch.ones(1)).item()

    def check_torch_scripted(run):
        return run(use_scripted), run(use_scripted)
    """,
    [2.0, 2.0],
    imports=TORCH,
    needs_file=True,
)
program(
    "torch_refused",
    """
    import torch

    done = torch.futures.Future()
    done.set_result(1)
    batches = iter(torch.utils.data.DataLoader(range(4), num_workers=0))

    def use_done():
        return done.wait()

    def use_batches():
        return next(batches).item()

    def check_torch_refused(run):
        return attempt(run, use_done), attempt(run, use_batches)
    """,
    threads=[1, 0],
    workers=[
        Raises("SerializationError", "global done of __main__"),
        Raises("SerializationError", "global batches of __main__"),
    ],
    members=[
        Raises("SerializationError", "global done of __main__"),
        Raises("SerializationError", "global batches of __main__"),
    ],
    ways={"fork": [1, 0]},
    imports=TORCH,
    differs="originals import the script, and so make everything anew",
    needs_main=True,
)

# -- whole scripts -----------------------------------------------------------------------------

WORKERS = ("fork", "forkserver", "spawn")
MEMBERS = ("ipc", "zmq", "torch_rpc")


@dataclass(frozen=True)
class Script:
    """A whole script: gets the config of a way as ``sys.argv[1]``, prints its results as JSON.

    Attributes:
        source: the script.
        expected: its results.
        ways: those in which it makes sense.
        how: a key of HOW.
        imports: slow modules that it needs.
        otherwise: results in single ways.
    """

    source: str
    expected: Any
    ways: tuple[str, ...]
    how: str = "script"
    imports: tuple[str, ...] = ()
    otherwise: dict[str, Any] = field(default_factory=dict)

    def run(self, way: str, folder: Path) -> Any:
        argument = json.dumps(config_of(way, self.imports))
        return run_script(self.source, folder, argument, self.how, **MODULES)


SCRIPTS: dict[str, Script] = {}

SCRIPT_HEAD = """
import json, os, sys
import pparallel
config = json.loads(sys.argv[1])
"""


def script(name: str, source: str, expected: Any, ways: tuple[str, ...], **options: Any) -> None:
    """Add a script; it begins with SCRIPT_HEAD."""
    assert name not in SCRIPTS
    whole = SCRIPT_HEAD + textwrap.dedent(source)
    SCRIPTS[name] = Script(whole, expected, ways, **options)


# Original: torch's tutorial "Implementing a Parameter Server using Distributed RPC Framework".
script(
    "parameter_server",
    """
    import threading

    import torch

    class ParameterServer(torch.nn.Module):
        made = 0

        def __init__(self):
            super().__init__()
            ParameterServer.made += 1
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            self.lock = threading.Lock()
            self.steps = 0

        def forward(self, x):
            return self.weight * x

        def step(self, gradient):
            with self.lock:
                self.optimizer.zero_grad()
                self.weight.grad = gradient
                self.optimizer.step()
                self.steps += 1

    server = None
    lock = threading.Lock()

    def get_server():
        global server
        with lock:
            if server is None:
                server = ParameterServer()
            return server

    def steps():
        return server.steps, ParameterServer.made, server.weight.item()

    def run_trainer(group):
        ref = group.remote(0, get_server)
        for _ in range(5):
            loss = ref.rpc_sync().forward(torch.ones(1))
            ref.rpc_sync().step(torch.ones(1))

    def work(rt):
        group = rt.group()
        group.barrier(60)
        if rt.rank:
            run_trainer(group)
        group.barrier(60)
        found = group.rpc_sync(0, steps)
        group.barrier(60)
        return found

    print(json.dumps(pparallel.launch({"members": 3, **config}, work)))
    """,
    [[10, 1, -10.0]] * 3,
    ("local", *MEMBERS),
    imports=TORCH,
)
# Original: torch RPC. Each process has one copy of a function's globals, whoever calls it.
script(
    "senders_share_a_namespace",
    """
    import threading

    served, lock = [], threading.Lock()

    def serve(who):
        with lock:
            served.append(who)
            return len(served)

    def serve_for(group, to):
        return group.rpc_sync(to, serve, args=("relayed",))

    def work(rt):
        group = rt.group()
        group.barrier(60)
        if rt.rank != 1:
            for _ in range(5):
                group.rpc_sync(1, serve, args=(rt.rank,))
                group.rpc_sync(1, lambda: serve("by a lambda"))
        group.barrier(60)
        if rt.rank == 1:
            serve("own")
            group.rpc_sync(2, serve_for, args=(group, 1))
        group.barrier(60)
        return len(served)

    def counted(rt):
        return work(rt), len(served)

    print(json.dumps(pparallel.launch({"members": 3, **config}, counted)))
    """,
    [[0, 0], [22, 22], [0, 0]],
    MEMBERS,
)
# Original: torch RPC.
script(
    "a_members_model",
    """
    model = "initial"

    def set_model(value):
        global model
        model = value

    def read_model():
        return model

    def work(rt):
        global model
        group = rt.group()
        group.barrier(60)
        if rt.rank == 1:
            model = "of member 1"
        group.barrier(60)
        found = [group.rpc_sync(to, read_model) for to in range(3)]
        group.barrier(60)
        if rt.rank == 0:
            group.rpc_sync(2, set_model, args=("set from 0",))
        group.barrier(60)
        return found, group.rpc_sync(2, read_model), model

    print(json.dumps(pparallel.launch({"members": 3, **config}, work)))
    """,
    [
        [["initial", "of member 1", "initial"], "set from 0", "initial"],
        [["initial", "of member 1", "initial"], "set from 0", "of member 1"],
        [["initial", "of member 1", "initial"], "set from 0", "set from 0"],
    ],
    MEMBERS,
)
# Original: torch RPC, where `me.rpc_sync().log` is a callable of the reference's proxy.
script(
    "method_as_callback",
    """
    import threading

    callbacks = []
    lock = threading.Lock()

    class Observer:
        def __init__(self):
            self.lines = []

        def log(self, line):
            self.lines.append(line)
            return len(self.lines)

    def observer():
        return Observer()

    def register(callback):
        with lock:
            callbacks.append(callback)

    def notify(line):
        return [each(line) for each in callbacks]

    def work(rt):
        group = rt.group()
        group.barrier(60)
        found = None
        if rt.rank == 0:
            me = group.remote(0, observer)
            group.rpc_sync(1, register, args=(me.rpc_sync().log,))
            found = [group.rpc_sync(1, notify, args=(each,)) for each in "ab"]
            found.append(me.to_here().lines)
            group.rpc_sync(1, callbacks_clear)
        group.barrier(60)
        return found

    def callbacks_clear():
        callbacks.clear()

    print(json.dumps(pparallel.launch({"members": 2, **config}, work)[0]))
    """,
    [[1], [2], ["a", "b"]],
    ("local", *MEMBERS),
)
# Original: torch RPC.
script(
    "registered_service",
    """
    import threading

    lock = threading.Lock()
    handled = {}

    def service(key):
        with lock:
            handled[key] = handled.get(key, 0) + 1
            return handled[key]

    def handled_keys():
        return sorted(handled)

    def work(rt):
        group = rt.group()
        if rt.rank == 1:
            group.register("service", service)
        group.barrier(60)
        found = None
        if rt.rank == 0:
            found = [group.registered_sync("service", args=(each,)) for each in "aab"]
            found.append(group.rpc_sync(1, service, args=("a",)))
            found.append(group.rpc_sync(1, handled_keys))
        group.barrier(60)
        return found

    print(json.dumps(pparallel.launch({"members": 2, **config}, work)[0]))
    """,
    [1, 2, 1, 3, ["a", "b"]],
    ("local", *MEMBERS),
)
# Original: torch RPC, where the call is a NameError.
script(
    "half_of_a_group",
    """
    layer = {"w": [0]}

    def read_layer():
        return layer["w"][0]

    def read_both():
        return state["w"] is layer["w"]

    def work(rt):
        global state
        group = rt.group()
        group.barrier(60)
        found = None
        if rt.rank == 0:
            found = [group.rpc_sync(1, read_layer)]
            state = {"w": layer["w"]}
            try:
                found.append(group.rpc_sync(1, read_both))
            except Exception as error:
                text = str(error)
                found.append([each for each in ("layer", "state", "name all") if each in text])
        group.barrier(60)
        return found

    print(json.dumps(pparallel.launch({"members": 2, **config}, work)[0]))
    """,
    [0, ["layer", "state", "name all"]],
    MEMBERS,
)
# Original: torch RPC, which sends functions by name and nothing of what they use.
script(
    "pickled_once_per_peer",
    """
    pickled = []

    class Big:
        def __init__(self):
            self.data = bytes(100_000)

        def __getstate__(self):
            pickled.append(1)
            return self.__dict__

    big = Big()

    def size():
        return len(big.data)

    def work(rt):
        group = rt.group()
        group.barrier(60)
        found = None
        if rt.rank == 0:
            pickled.clear()
            found = [{group.rpc_sync(1, size) for _ in range(20)} == {100_000}]
            found.append({each.wait() for each in [group.rpc_async(1, size) for _ in range(50)]})
            found = [found[0], found[1] == {100_000}, len(pickled) <= 1]
        group.barrier(60)
        return found

    print(json.dumps(pparallel.launch({"members": 2, **config}, work)[0]))
    """,
    [True, True, True],
    ("local", *MEMBERS),
)
# Original: torch.multiprocessing.spawn refuses them too, as "cannot pickle '_thread.lock' object".
script(
    "refused_arguments_of_launch",
    """
    import queue
    import threading

    def work(rt, value):
        return 1

    def attempt(value):
        try:
            return pparallel.launch({"members": 1, **config}, work, (value,))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    inbox = queue.Queue()
    inbox.put(1)
    values = threading.Lock(), threading.Event(), inbox, open(__file__)
    print(json.dumps([attempt(each) for each in values]))
    """,
    [
        Raises("SerializationError", "args[0] (threading.Lock)"),
        Raises("SerializationError", "args[0] (threading.Event)"),
        Raises("SerializationError", "args[0] (queue.Queue)"),
        Raises("SerializationError", "args[0] (TextIOWrapper)"),
    ],
    ("ipc",),
)
# Original: torch.multiprocessing (Hogwild).
script(
    "hogwild",
    """
    import torch

    model, shared_global = torch.nn.Linear(1, 1, bias=False), torch.zeros(1)
    torch.nn.init.zeros_(model.weight)
    model.share_memory()
    shared_global.share_memory_()
    own = torch.zeros(1)

    def train(rt, given):
        with torch.no_grad():
            given.weight += 1
            model.weight += 1
            shared_global.add_(1)
            own.add_(1)

    if __name__ == "__main__":
        pparallel.launch({"members": 2, **config}, train, (model,))
        print(json.dumps([model.weight.item(), shared_global.item(), own.item()]))
    """,
    [4.0, 2.0, 0.0],
    ("ipc", "zmq"),
    imports=TORCH,
)
# Original: `launch` sends what its target reaches, as it is at the call.
script(
    "values_at_launch",
    """
    class Registry:
        entries = {}

    def entry(function):
        Registry.entries[function.__name__] = function
        return function

    @entry
    def first():
        return scale

    scale = 1

    def work(rt):
        global scale
        scale += rt.rank
        return Registry.entries["first"](), Registry.entries["first"] is first

    found = [pparallel.launch({"members": 2, **config}, work)]
    if __name__ == "__main__":
        scale = 10
        found.append(pparallel.launch({"members": 2, **config}, work))
        found.append(pparallel.launch({"members": 2, **config}, lambda rt: first()))
    print(json.dumps([*found, scale]))
    """,
    [[[1, True], [2, True]], [[10, True], [11, True]], [10, 10], 10],
    MEMBERS,
)
# Original: concurrent.futures.ProcessPoolExecutor with an initializer, in each of these places.
script(
    "initializer_everywhere",
    """
    model = None
    config.update(initargs=[3])

    def load(value):
        global model
        model = value

    def read():
        return model

    def with_pool(*_):
        with pparallel.build({"pool": {**config, "initializer": load}}) as rt:
            return rt.pool.submit(read).result(60), model

    found = {"script": with_pool()}
    process = {"launcher": {"backend": "process"}, "transport": {"backend": "ipc"}}
    found["member"] = pparallel.launch({"members": 1, **process}, with_pool)[0]
    with pparallel.build({"pool": {**config, "initargs": []}}) as rt:
        found["task"] = rt.pool.submit(with_pool).result(60)
    with pparallel.build({"launcher": {"backend": "process"}}) as rt:
        found["rank"] = rt.launcher.spawn(with_pool, nprocs=1)[0]
    print(json.dumps(found))
    """,
    {key: [3, None] for key in ("script", "member", "task", "rank")},
    WORKERS,
)
script(
    "initializer_under_a_profiler",
    """
    model = None

    def load(value):
        global model
        model = value

    def read():
        return model, __name__

    with pparallel.build({"pool": {**config, "initializer": load, "initargs": [3]}}) as rt:
        print(json.dumps(rt.pool.submit(read).result(60)))
    """,
    [3, "__main__"],
    WORKERS,
    how="profile",
)
# Original: python -m pkg.main with concurrent.futures.
RELATIVE = """
from .consts import K as imported

def inside():
    from .consts import K
    from . import consts
    return K, consts.K, imported, __package__
"""
script(
    "relative_imports_in_a_task",
    f"""{RELATIVE}
with pparallel.build({{"pool": config}}) as rt:
    print(json.dumps(rt.pool.submit(inside).result(60)))
""",
    [42, 42, 42, "pkg"],
    ("thread", *WORKERS),
    how="module",
)
script(
    "relative_imports_in_a_member",
    f"""{RELATIVE}
def work(rt):
    group = rt.group()
    group.barrier(60)
    found = group.rpc_sync(1 - rt.rank, inside)
    group.barrier(60)
    return found

print(json.dumps(pparallel.launch({{"members": 2, **config}}, work)[0]))
""",
    [42, 42, 42, "pkg"],
    ("local", *MEMBERS),
    how="module",
)
# Original: celery's `delay`.
script(
    "decorator_with_delay",
    """
    with pparallel.build({"pool": config}) as rt:
        POOL = rt.pool

        def task(function):
            function.delay = lambda *args: POOL.submit(function, *args)
            return function

        @task
        def double(n):
            return 2 * n

        @task
        def quadruple(n):
            return double(double(n))

        def use_pool():
            return POOL.submit(abs, -1).result()

        found = [double.delay(2).result(60), quadruple.delay(2).result(60), quadruple(1)]
        try:
            found.append(POOL.submit(use_pool).result(60))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        print(json.dumps(found))
    """,
    [4, 8, 4, Raises("SerializationError", "global POOL of __main__")],
    ("thread", *WORKERS),
    otherwise={"thread": [4, 8, 4, 1]},
)
# Original: concurrent.futures with spawn: the worker would have no such names before it starts.
script(
    "pool_opened_early",
    """
    with pparallel.build({"pool": config}) as rt:
        rate, early = 1, []

        def rated(n):
            early.append(n)
            return n * rate, len(early)

        found = [rt.pool.submit(rated, 1).result(60)]
        rate = 2

        class Rated:
            def __init__(self, n):
                self.n = n * rate

        def make(n):
            return Rated(n)

        made = rt.pool.submit(make, 2).result(60)
        found += [made.n, type(made) is Rated, rt.pool.submit(rated, 1).result(60)]
        print(json.dumps(found))
    """,
    [[1, 1], 4, True, [2, 2]],
    ("thread", *WORKERS),
)
# Original: concurrent.futures has the values of the import; documented.
script(
    "rebound_below_the_guard",
    """
    size = 1
    names = []

    def read():
        return size, names

    if __name__ == "__main__":
        size = 5
        names.append("main")
        with pparallel.build({"pool": config}) as rt:
            print(json.dumps(rt.pool.submit(read).result(60)))
    """,
    [5, ["main"]],
    ("thread", *WORKERS),
)
# A new worker has what the caller has.
script(
    "replaced_worker",
    """
    count, kept = 0, {"a": 1}

    def use(dies=False):
        global count
        count += 1
        kept["n"] = kept.get("n", 0) + 1
        if dies:
            os._exit(1)
        return count, kept["n"], kept["a"], os.getpid()

    found = []
    with pparallel.build({"pool": config}) as rt:
        first = [rt.pool.submit(use).result(60) for _ in range(2)]
        try:
            rt.pool.submit(use, True).result(60)
        except Exception as error:
            found.append(type(error).__name__)
        second = [rt.pool.submit(use).result(60) for _ in range(2)]
        found += [first[1][:3], second[1][:3], first[0][3] != second[0][3]]
    print(json.dumps(found))
    """,
    ["WorkerLostError", [2, 2, 1], [2, 2, 1], True],
    WORKERS,
)
# A value is looked at once per map.
script(
    "one_look_per_map",
    """
    pickled = []

    class Table:
        def __init__(self):
            self.rows = list(range(100))

        def __getstate__(self):
            pickled.append(1)
            return self.__dict__

    table = Table()

    def look(n):
        return table.rows[n]

    with pparallel.build({"pool": config}) as rt:
        rt.pool.submit(look, 1).result(60)
        pickled.clear()
        found = rt.pool.map(look, range(100)) == list(range(100))
    print(json.dumps([found, len(pickled) <= 3]))  # not once per item
    """,
    [True, True],
    ("thread", *WORKERS),
)
# A counter that changes with each submit, and a model that the worker has loaded.
script(
    "counter_and_lazy_model",
    """
    SUBMITS = int(os.environ.get("SUBMITS", "500"))
    SIZE = int(os.environ.get("SIZE", "1_000_000"))

    epoch, model, loads = 0, None, 0

    def get_model():
        global model, loads
        if model is None:
            model = bytearray(os.urandom(SIZE))
            loads += 1
        return model

    def work(n):
        get_model()[n % SIZE] = 1
        return epoch, loads, model[n % SIZE]

    def pss():
        with open("/proc/self/smaps_rollup") as lines:
            kinds = ("Pss_Anon:", "Pss_Shmem:")  # no libraries: other processes share them
            return sum(int(each.split()[1]) for each in lines if each.startswith(kinds))

    with pparallel.build({"pool": config}) as rt:
        def footprint():
            return pss() + rt.pool.submit(pss).result(60)

        wrong, before = [], 0
        for epoch in range(SUBMITS):
            if epoch == 100:
                before = footprint()
            found = rt.pool.submit(work, epoch).result(60)
            if found != (epoch, 1, 1):
                wrong.append(found)
        grown = footprint() - before
        print(json.dumps([wrong[:3], grown < 2000 or grown]))
    """,
    [[], True],
    ("thread", *WORKERS),
)
# A global of 5 MB that is pickled with each submit takes its caller's time: one warning, by name.
script(
    "warned_of_a_large_global",
    """
    import logging
    import warnings

    records = []

    class Handler(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    logging.getLogger().addHandler(Handler())
    table = {n: str(n) for n in range(300_000)}

    def look(n):
        return table[n]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pparallel.build({"pool": config}) as rt:
            found = [rt.pool.submit(look, n).result(60) for n in range(3)]
    texts = records + [str(each.message) for each in caught]
    of_table = [each for each in texts if "table" in each and "initializer" in each]
    print(json.dumps([found, len(of_table)]))
    """,
    [["0", "1", "2"], 1],
    WORKERS,
)
# Original: from __future__ import annotations with typing.get_type_hints after an import.
script(
    "future_annotations",
    """
    import dataclasses
    import typing

    class Engine:
        power = 3

    @dataclasses.dataclass
    class Car:
        engine: Engine
        spare: Engine | None = None
        kinds: typing.ClassVar[int] = 4
        once: dataclasses.InitVar[int] = 0

    def drive(car: Car, fast: bool = True) -> Engine:
        return car.engine

    def hints():
        found = typing.get_type_hints(drive)
        fields = typing.get_type_hints(Car)
        names = [each.name for each in dataclasses.fields(Car)]
        return found["car"] is Car, found["return"] is Engine, fields["engine"] is Engine, names

    def hints_of(value):
        return typing.get_type_hints(type(value))["engine"] is Engine

    with pparallel.build({"pool": config}) as rt:
        run = lambda *args: rt.pool.submit(*args).result(60)
        print(json.dumps([run(hints), run(hints_of, Car(Engine()))]))
    """,
    [[True, True, True, ["engine", "spare"]], True],
    ("thread", *WORKERS),
)
SCRIPTS["future_annotations"] = Script(
    "from __future__ import annotations\n" + SCRIPTS["future_annotations"].source,
    SCRIPTS["future_annotations"].expected,
    SCRIPTS["future_annotations"].ways,
)
# Original: torch.multiprocessing.Pool with fork, which inherits them.
script(
    "inherited_by_fork",
    """
    import pparallel.compat.torch_multiprocessing as mp

    if __name__ == "__main__":
        mp.set_start_method("fork")
    total, lock = mp.Value("i", 0), mp.Lock()
    done = mp.Event()

    def add(n):
        with lock:
            total.value += n
        done.set()
        return total.value > 0

    if __name__ == "__main__":
        with mp.Pool(2) as pool:
            found = all(pool.map(add, range(1, 5)))
        print(json.dumps([found, total.value, done.is_set()]))
    """,
    [True, 10, True],
    ("fork",),
    imports=TORCH,
)
# Original: a task of concurrent.futures that starts processes.
script(
    "processes_in_a_task",
    """
    import multiprocessing

    base = 40

    def put_answer(queue, n):
        queue.put((base + n, __name__))

    def start_process(method):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=put_answer, args=(queue, 2))
        process.start()
        process.join(60)
        return (queue.get() if not process.exitcode else None), process.exitcode

    if __name__ == "__main__":
        with pparallel.build({"pool": config}) as rt:
            run = lambda method: rt.pool.submit(start_process, method).result(90)
            print(json.dumps([run(each) for each in ("fork", "spawn", "forkserver")]))
    """,
    [[[42, "__main__"], 0], [[42, "__mp_main__"], 0], [[42, "__mp_main__"], 0]],
    ("thread", *WORKERS),
)
script(
    "processes_in_a_member",
    """
    import multiprocessing

    def put_answer(queue, n):
        queue.put((40 + n, __name__))

    def start_process(method):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=put_answer, args=(queue, 2))
        process.start()
        process.join(60)
        return (queue.get() if not process.exitcode else None), process.exitcode

    def work(rt):
        return start_process("spawn"), start_process("forkserver")

    if __name__ == "__main__":
        print(json.dumps(pparallel.launch({"members": 1, **config}, work)[0]))
    """,
    [[[42, "__mp_main__"], 0], [[42, "__mp_main__"], 0]],
    ("local", *MEMBERS),
)
# Original: a DataLoader with worker processes, here inside a task.
script(
    "loaders_in_a_task",
    """
    import torch

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, n):
            return torch.tensor(n * n)

    def load(method):
        loader = torch.utils.data.DataLoader(
            Squares(), batch_size=2, num_workers=1, multiprocessing_context=method
        )
        return [each.tolist() for each in loader]

    if __name__ == "__main__":
        with pparallel.build({"pool": config}) as rt:
            run = lambda *args: rt.pool.submit(*args).result(90)
            print(json.dumps([run(load, each) for each in ("fork", "spawn", "forkserver")]))
    """,
    [[[0, 1], [4, 9]]] * 3,
    WORKERS,
    imports=TORCH,
)
# Without a guard the child of a task runs the script again, and with it the pool.
script(
    "unguarded_child_is_refused",
    """
    import multiprocessing

    with open("runs.txt", "a") as notes:
        notes.write("run\\n")

    def nothing():
        pass

    def start_process():
        process = multiprocessing.get_context("spawn").Process(target=nothing)
        process.start()
        process.join(60)
        return process.exitcode

    refused = None
    try:
        with pparallel.build({"pool": config}) as rt:
            code = rt.pool.submit(start_process).result(90)
    except Exception as error:
        with open("refusal.txt", "a") as notes:
            notes.write(f"{type(error).__name__}: {error}\\n")
        raise
    with open("runs.txt") as runs, open("refusal.txt") as refusals:
        text = refusals.read()
        print(json.dumps([code != 0, len(runs.readlines()), "guard the script" in text]))
    """,
    [True, 2, True],
    ("thread", *WORKERS),
    otherwise={"thread": [True, 2, False]},
)
script(
    "unguarded_launch_is_refused",
    """
    import multiprocessing

    with open("runs.txt", "a") as notes:
        notes.write("run\\n")

    def nothing():
        pass

    def work(rt):
        process = multiprocessing.get_context("spawn").Process(target=nothing)
        process.start()
        process.join(60)
        return process.exitcode

    try:
        code = pparallel.launch({"members": 1, **config}, work)[0]
    except Exception as error:
        with open("refusal.txt", "a") as notes:
            notes.write(f"{type(error).__name__}: {error}\\n")
        raise
    with open("runs.txt") as runs, open("refusal.txt") as refusals:
        text = refusals.read()
        print(json.dumps([code != 0, len(runs.readlines()), "guard the script" in text]))
    """,
    [True, 2, True],
    ("ipc", "zmq"),
)
# Original: multiprocessing.Queue: classes arrive as those of the receiver.
script(
    "queues",
    """
    from pparallel import SimpleQueue

    class Item:
        def __init__(self, n):
            self.n = n

    handled = []

    def handle(item):
        handled.append(item.n)
        return len(handled)

    def serve(tasks, results):
        for item, function in iter(tasks.get, None):
            results.put((function(item), type(item) is Item, function is handle, item))
        return len(handled)

    with pparallel.build({"pool": config}) as rt, SimpleQueue() as tasks, SimpleQueue() as results:
        served = rt.pool.submit(serve, tasks, results)
        found = []
        for n in range(3):
            tasks.put((Item(n), handle))
            *values, item = results.get(timeout=60)
            found.append([*values, type(item) is Item])
        tasks.put(None)
        print(json.dumps([found, served.result(60), len(handled)]))
    """,
    [[[1, True, True, True], [2, True, True, True], [3, True, True, True]], 3, 0],
    ("thread", *WORKERS),
    otherwise={
        "thread": [[[1, True, True, True], [2, True, True, True], [3, True, True, True]], 3, 3]
    },
)
script(
    "ordered_servers",
    """
    import enum

    class Mode(enum.Enum):
        TRAIN = 1

    class State:
        def __init__(self, n):
            self.n, self.mode = n, Mode.TRAIN

        def next(self):
            return State(self.n + 1)

    def work(rt):
        server, group = rt.ordered_server, rt.group()
        if rt.rank == 1:
            server.push("state", State(1), 1, None)
        group.barrier(60)
        state, version = server.pull("state")
        found = type(state) is State, state.mode is Mode.TRAIN, state.next().n
        group.barrier(60)
        return found

    print(json.dumps(pparallel.launch({"members": 2, **config}, work)))
    """,
    [[True, True, 2]] * 2,
    ("local", *MEMBERS),
)
# Original: a rank of torch.multiprocessing.spawn.
script(
    "ranks_of_spawn",
    """
    import threading

    lock, results = threading.Lock(), {}
    seen = None

    class Base:
        registry = []

        def __init_subclass__(cls):
            Base.registry.append(cls.__name__)

    class Derived(Base):
        pass

    def note(rank):
        global seen
        with lock:
            results[rank] = seen
        seen = rank
        return sorted(results), seen, Base.registry

    def train(rank):
        return note(rank)

    with pparallel.build({"launcher": {"backend": "process"}}) as rt:
        found = [
            rt.launcher.spawn(train, nprocs=2, start_method=each)
            for each in ("fork", "forkserver", "spawn")
        ]
    print(json.dumps([found, seen]))
    """,
    [[[[[0], 0, ["Derived"]], [[1], 1, ["Derived"]]]] * 3, None],
    ("ipc",),
)
# Several workers: each has a state of its own, and an initializer's.
script(
    "two_workers",
    """
    import time

    config["size"] = 2
    mine, started = [], None

    def start():
        global started
        started = os.getpid()

    def own(n):
        mine.append(n)
        time.sleep(0.05)
        return os.getpid(), len(mine), started == os.getpid()

    with pparallel.build({"pool": {**config, "initializer": start}}) as rt:
        found = rt.pool.map(own, range(20))
        counts = {}
        for pid, count, is_own in found:
            counts[pid] = counts.get(pid, 0) + 1
        consistent = all(max(c for p, c, _ in found if p == pid) == n for pid, n in counts.items())
        print(json.dumps([consistent, all(each[2] for each in found)]))
    """,
    [True, True],
    WORKERS,
)
# Original: concurrent.futures, where a worker imports the script and its initializer opens its own.
script(
    "initializer_opens",
    """
    import sqlite3
    import threading

    conn = sqlite3.connect(":memory:")
    conn.execute("create table rows (n)")
    lock = threading.Lock()

    class Rows:
        def add(self, n):
            with lock, conn:
                conn.execute("insert into rows values (?)", (n,))
                return conn.execute("select count(*), sum(n) from rows").fetchone()

    def open_own():
        global conn
        conn = sqlite3.connect(":memory:", check_same_thread=False)
        conn.execute("create table rows (n)")

    def add(n):
        return Rows().add(n)

    with pparallel.build({"pool": {**config, "initializer": open_own}}) as rt:
        found = [rt.pool.submit(add, n).result(60) for n in (1, 2)]
        found.append(rt.pool.submit(Rows().add, 3).result(60))
    try:
        own = conn.execute("select count(*) from rows").fetchone()[0]
    except sqlite3.ProgrammingError as error:
        own = str(error)
    print(json.dumps([found, own]))
    """,
    [[[1, 1], [2, 3], [3, 6]], 0],
    WORKERS,
)
# The calls of a pool differ in nothing; both workers follow the caller.
script(
    "calls_of_a_pool",
    """
    import asyncio
    import time
    from concurrent.futures import ThreadPoolExecutor

    config["size"] = 2
    rate = 0

    def scaled(n, m=1):
        time.sleep(0.002)
        return n * m * rate

    with pparallel.build({"pool": config}) as rt:
        pool, wrong = rt.pool, []
        for rate in range(1, 6):
            expected = [n * rate for n in range(20)]
            pairs = [(n, 1) for n in range(20)]
            executor = pool.as_executor()
            found = {
                "map": pool.map(scaled, range(20)),
                "imap": list(pool.imap(scaled, range(20))),
                "unordered": sorted(pool.imap_unordered(scaled, range(20))),
                "starmap": pool.starmap(scaled, pairs),
                "submit": [each.result(60) for each in [pool.submit(scaled, n) for n in range(20)]],
                "async": pool.map_async(scaled, range(20)).get(60),
                "executor": list(executor.map(scaled, range(20))),
                "lambda": pool.map(lambda n: scaled(n), range(20)),
            }
            with ThreadPoolExecutor(4) as threads:
                found["threads"] = list(threads.map(lambda n: pool.apply(scaled, (n,)), range(20)))
            wrong += [(rate, each) for each in found if found[each] != expected]
        print(json.dumps(wrong))
    """,
    [],
    ("thread", *WORKERS),
)
# Original: joblib with loky, whose workers get each function's globals with each call.
script(
    "joblib",
    """
    import joblib
    import pparallel.joblib

    del config["size"]
    rate, calls = 1, []

    class Item:
        def __init__(self, n):
            self.n = n

    def handle(item):
        calls.append(1)
        return Item(item.n * rate)

    def handle_all():
        made = joblib.Parallel()(joblib.delayed(handle)(Item(n)) for n in range(4))
        return [each.n for each in made], all(type(each) is Item for each in made)

    with joblib.parallel_config("pparallel", pool=config, n_jobs=2):
        found = [handle_all()]
        rate = 5
        found.append(handle_all())
    print(json.dumps(found))
    """,
    [[[0, 1, 2, 3], True], [[0, 5, 10, 15], True]],
    WORKERS,
)
# Original: a test that runs its lambdas in the same process.
PYTEST_MODULE = """
import json, sys
import pparallel
import pytest

LIMIT = 2
state = []

def bump():
    state.append(1)
    return len(state)

@pytest.mark.parametrize("method", METHODS)
def test_lambda(method):
    config = {"backend": "process", "size": 1, "start_method": method}
    with pparallel.build({"pool": config}) as rt:
        def check(n):
            assert n < LIMIT
            return n

        def fails(n):
            assert n == LIMIT, "words"

        assert rt.pool.submit(check, 1).result(60) == 1
        for function in (check, fails):
            with pytest.raises(AssertionError) as caught:
                rt.pool.submit(function, 3).result(60)
            print("TEXT", json.dumps(str(caught.value)))
        with pytest.raises(AssertionError) as caught:
            rt.pool.submit(lambda: (_ for _ in ()).throw(AssertionError("own"))).result(60)
        assert [rt.pool.submit(bump).result(60) for _ in range(2)] == [1, 2]

def test_member():
    def work(rt):
        n = 3
        assert n < LIMIT

    with pytest.raises(AssertionError) as caught:
        config = {"members": 1, "launcher": {"backend": "process"}}
        pparallel.launch(config, work)
    print("TEXT", json.dumps(str(caught.value)))
"""


def run_pytest_module(folder: Path, methods: list[str], mode: str) -> list[str]:
    """Run PYTEST_MODULE with an import mode; return the texts of its assertions."""
    (folder / "test_users.py").write_text(PYTEST_MODULE.replace("METHODS", repr(methods)))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--import-mode={mode}", "test_users.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return [json.loads(each.partition("TEXT ")[2]) for each in lines if "TEXT " in each]


# -- members that run the script themselves ----------------------------------------------------

# Original: torch RPC under torchrun: each rank has imported the script.
RANKS = """
import json, os, sys, threading
import pparallel

rank = int(os.environ.get("RANK") or sys.argv[1])

class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("pickled")

unpicklable, lock, log = Unpicklable(), threading.Lock(), open(os.devnull, "w")
count, registry = 0, {}

class Kind:
    made = 0

    def __init__(self):
        Kind.made += 1

def use():
    global count
    with lock:
        count += 1
        log.write("line")
        return count, type(unpicklable) is Unpicklable, rank

def is_here(function, kind, value):
    return function is use, kind is Kind, type(value) is Kind

def own_names():
    import __main__
    return [each for each in ("only_of_rank_0", "only_value") if hasattr(__main__, each)]

if rank == 0:
    only_value = [5]

    def only_of_rank_0():
        return only_value[0], rank

def run_ranks(rt):
    group = rt.group()
    group.barrier(60)
    found = None
    if rank == 0:
        call = lambda function, *args: group.rpc_sync(1, function, args=args)
        found = [call(use), call(use), call(lambda: use()), count]
        found += [call(is_here, use, Kind, Kind()), call(own_names)]
        found += [call(only_of_rank_0), call(own_names), Kind.made]
    group.barrier(60)
    return found
"""
RANKS_FOUND = [
    [1, True, 1],
    [2, True, 1],
    [3, True, 1],
    0,
    [True, True, True],
    [],
    [5, 1],
    ["only_of_rank_0", "only_value"],
    1,
]
BY_HAND = """
names = ("member-0", "member-1")
member = pparallel.Member(names[rank], rank=rank, world_size=2, names=names)
place = {"directory": sys.argv[2], "key": "a-long-random-text-of-the-test"}
config = {"members": list(names), "transport": {"backend": "ipc", **place}}
with pparallel.build(config, member=member) as rt:
    print(json.dumps(run_ranks(rt)))
"""
UNDER_TORCHRUN = """
config = {"members": "auto", "transport": {"backend": "torch_rpc"}}
with pparallel.build({**config, "reducer": {"backend": "local"}}) as rt:
    found = run_ranks(rt)
    if rank == 0:
        print(json.dumps(found))
"""
IN_A_WORLD = """
from pparallel.compat.machin.distributed import World

ports = [f"tcp://127.0.0.1:{each}" for each in sys.argv[2:]]
world = World(str(rank), rank, 2, dist_init_method=ports[0], rpc_init_method=ports[1])
print(json.dumps(run_ranks(world.runtime)))
world.stop()
"""


def run_by_hand(source: str, folder: Path, *args: str) -> Any:
    """Start a script once for each of two ranks; return what rank 0 prints."""
    path = folder / "script.py"
    path.write_text(source)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(path), str(rank), *args],
            cwd=folder,
            env={key: value for key, value in os.environ.items() if key not in STRAY},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ends = [each.communicate(timeout=LIMIT) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.communicate()
    assert [each.returncode for each in ranks] == [0, 0], ends
    return json.loads(ends[0][0].splitlines()[-1])
