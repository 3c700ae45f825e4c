"""Module-level state of scripts where it changes on both sides, in one worker and one member."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

IN_A_WORKER = """
    import queue
    import threading
    import weakref

    import torch

    import pparallel
    from pparallel_process import ProcessPoolConfig

    tasks = queue.Queue()
    tasks.put(1)
    rows = []
    config = {"rate": 1}
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    weights_of_model = list(model.parameters())
    parent, child = {}, {}
    parent["child"], child["parent"] = child, parent
    started = threading.Barrier(3)
    notes = weakref.WeakKeyDictionary({threading.current_thread(): 1})


    class Proxy:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)


    proxy = Proxy([])


    class Registry(type):
        made = {}

        def __call__(cls):
            return cls.made.setdefault(cls, super().__call__())


    class Settings(metaclass=Registry):
        seen = rate = 0

        def with_default(self, value=1):
            return value


    settings = Settings()


    def use_queue():
        return tasks.qsize()


    def use_notes():
        return len(notes)


    def use_proxy(is_used):
        return proxy.append(1) if is_used else None


    def see():
        Settings.seen += 1
        return Settings.seen, Settings.rate, Settings() is settings, settings.with_default()


    def grow():
        rows.append(config["rate"])
        return rows


    def step():
        optimizer.zero_grad()
        model(torch.ones(1)).sum().backward()
        optimizer.step()
        return model.weight.item()


    def slow_down():
        schedule.step()
        (weight, _) = optimizer.param_groups[0]["params"]
        return schedule.optimizer is optimizer, weight is model.weight


    def is_updated():
        return weights_of_model[0] is model.weight, optimizer.param_groups[0]["lr"]


    def connected():
        return parent["child"] is child and child["parent"] is parent


    def submit_at_once(pool, found):
        started.wait(30)
        found.append(len(pool.apply(grow)))


    if __name__ == "__main__":
        with pparallel.build(ProcessPoolConfig(size=1)) as pool:
            try:
                pool.apply(use_queue)
            except pparallel.errors.SerializationError as error:
                assert "global tasks of __main__ (queue.Queue)" in str(error), error
            tasks.get()
            assert pool.apply(use_queue) == 0, "it can be sent now"

            assert pool.apply(use_proxy, (False,)) is None
            for function, args, name in ((use_notes, (), "notes"), (use_proxy, (True,), "proxy")):
                try:
                    pool.apply(function, args)
                except pparallel.errors.SerializationError as error:
                    assert f"global {name} of __main__" in str(error), error
                else:
                    raise AssertionError(name)

            found = []
            threads = [
                threading.Thread(target=submit_at_once, args=(pool, found)) for _ in range(3)
            ]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert sorted(found) == [1, 2, 3], "two threads send it as one"
            config["rate"] = 5
            assert pool.apply(grow) == [1, 1, 1, 5], "the task's list stays, the dict is new"
            rows = []
            assert pool.apply(grow) == [5], "another list, equal to the first"

            assert pool.apply(see) == (1, 0, True, 1)
            Settings.rate = 2
            assert pool.apply(see) == (2, 2, True, 1), "each attribute by itself"
            Settings.with_default.__defaults__ = (7,)
            assert pool.apply(see) == (3, 2, True, 7)

            weights = [pool.apply(step) for _ in range(2)]
            assert pool.apply(slow_down) == (True, True)
            assert pool.apply(step) < weights[1] < weights[0], "it goes on"
            assert model.weight.item() > weights[0]
            assert pool.apply(lambda: len(weights_of_model)) == 2
            assert pool.apply(is_updated) == (True, 0.1), "set together, and logged"
            assert pool.apply(connected)
        print("all are right")
"""

IN_MEMBERS = """
    import functools
    import threading

    import pparallel

    lock = threading.Lock()
    store = {}
    alone, both = [], None


    class Base:
        rate = 1


    class Rule(Base):
        def apply(self, value):
            return value * self.rate


    def helper(value, by=1):
        return value + by


    @functools.lru_cache
    def cached():
        return object()


    def use(value):
        return helper(value), Rule().apply(value)


    def put(key, value):
        with lock:
            store[key] = value


    def get(key):
        return store.get(key), cached() is cached()


    def take_alone():
        alone.append(1)
        return len(alone)


    def take_both():
        return alone, both


    def run(rt):
        global alone, both
        if rt.rank:
            return
        group = rt.group()
        group.rpc_sync(1, put, args=("a", 1))
        assert group.rpc_sync(1, get, args=("a",)) == (1, True)
        assert not store, "a member's state is its own"
        for _ in range(3):
            assert group.rpc_sync(1, use, args=(1,)) == (2, 1)
        helper.__defaults__, Base.rate = (5,), 3
        assert group.rpc_sync(1, use, args=(1,)) == (2, 1), "its own, too"
        Rule.apply = lambda self, value: -value
        assert group.rpc_sync(1, use, args=(1,)) == (2, -1), "code follows"
        assert [group.rpc_sync(1, take_alone) for _ in range(2)] == [1, 2]
        both = {"alone": [alone]}
        assert group.rpc_sync(1, take_both) == ([1, 1], None), "it has both already"


    if __name__ == "__main__":
        pparallel.launch({"members": 2, "launcher": {"backend": "process"}}, run)
        print("all are right")
"""

SMALL_CHANGES = """
    import threading

    import torch

    import pparallel
    from pparallel_process import ProcessPoolConfig

    busy = threading.Semaphore(1)
    level = 0


    def scaled(value, *, by=1):
        return value * by


    def use_scaled():
        return scaled(3)


    def enter():
        entered = busy.acquire(timeout=0)
        if entered:
            busy.release()
        return entered


    def drop():
        global level
        try:
            del level
        except NameError:
            return False
        return True


    weights = torch.zeros(2)


    def total():
        return weights.sum().item()


    temporary = [1]


    def read():
        return temporary


    def total_of_read():
        return sum(read())


    def give():
        return read, read()[0]


    class Size:
        def __init__(self, n):
            self.n = n

        def __reduce__(self):
            return restore, (type(self), self.n)


    class Box:
        size = Size(3)


    def restore(kind, n, scale=1):
        return kind(n * scale)


    def use_box():
        return Box.size.n


    if __name__ == "__main__":
        with pparallel.build(ProcessPoolConfig(size=1)) as pool:
            assert pool.apply(total) == 0
            weights.numpy()[0] = 1
            assert pool.apply(total) == 1, "a tensor that numpy writes to has changed"
            assert pool.apply(use_box) == 3, "what restores an attribute has its defaults"
            assert pool.apply(total_of_read) == 1
            del temporary
            assert pool.apply(give) == (read, 1)
            assert "temporary" not in globals(), "a result brings nothing of its receiver back"
            with busy:
                assert pool.apply(enter), "a semaphore that is held here arrives free"
            assert pool.apply(drop), "a global that code only deletes is brought"
            assert pool.apply(use_scaled) == 3
            scaled.__kwdefaults__ = {"by": 2}
            assert pool.apply(use_scaled) == 6, "defaults by keyword follow, too"
        print("all are right")
"""

MADE_BY_A_MEMBER = """
    import pparallel

    def grow_late():
        late.append(len(late))
        return late


    def see_late():
        return late


    def run(rt):
        global late
        if rt.rank:
            return
        late = []  # the program has none
        group = rt.group()
        assert group.rpc_sync(1, grow_late) == [0]
        late.append("of rank 0")
        assert group.rpc_sync(1, see_late) == [0], "a member keeps what it was sent once"


    if __name__ == "__main__":
        pparallel.launch({"members": 2, "launcher": {"backend": "process"}}, run)
        print("all are right")
"""

AMONG_THREADS = """
    import os
    import pparallel


    def write(text, log=open(os.devnull, "w")):
        return log.write(text)


    def run(rt):
        if not rt.rank:
            assert rt.group().rpc_sync(1, write, args=("abc",)) == 3


    if __name__ == "__main__":
        config = {"members": 2, "launcher": {"backend": "thread"}}
        pparallel.launch({**config, "transport": {"backend": "local"}}, run)
        print("all are right")
"""


def test_a_worker_follows_its_caller_and_keeps_what_tasks_made(tmp_path: Path) -> None:
    assert _output_of(IN_A_WORKER, tmp_path) == "all are right\n"


def test_members_keep_their_state_and_follow_code(tmp_path: Path) -> None:
    assert _output_of(IN_MEMBERS, tmp_path) == "all are right\n"


def test_a_worker_follows_small_changes(tmp_path: Path) -> None:
    assert _output_of(SMALL_CHANGES, tmp_path) == "all are right\n"


def test_a_member_keeps_what_came_from_another_member(tmp_path: Path) -> None:
    assert _output_of(MADE_BY_A_MEMBER, tmp_path) == "all are right\n"


def test_code_is_the_same_among_threads(tmp_path: Path) -> None:
    assert _output_of(AMONG_THREADS, tmp_path) == "all are right\n"


def _output_of(text: str, tmp_path: Path) -> str:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=55, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout
