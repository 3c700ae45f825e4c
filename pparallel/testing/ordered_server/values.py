"""Values are stored and returned whole, and shared with nobody."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from pparallel.errors import SerializationError
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.testing.ordered_server.base import OrderedServerTests
from pparallel.testing.ordered_server.programs import full_of, number_in
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads, switching_often


class ValueTests(OrderedServerTests):
    """Snapshots, copies, and what they are copied into."""

    def test_what_is_stored_is_a_snapshot(self, server: OrderedServer) -> None:
        import torch

        value: dict[str, Any] = {"t": torch.zeros(5000), "l": [1]}
        assert server.push("k", value, 1, None)
        value["t"] += 1
        value["l"] += [2]
        found = server.pull("k")
        assert found is not None
        assert found[0]["t"].sum() == 0
        assert found[0]["l"] == [1]

    def test_what_is_pulled_is_the_callers_own(self, server: OrderedServer) -> None:
        import torch

        assert server.push("k", torch.zeros(5000), 1, None)
        first, second = server.pull("k"), server.wait("k", timeout=PATIENCE)
        assert first is not None
        assert second is not None
        first[0].add_(1)
        again = server.pull("k")
        assert again is not None
        assert second[0].sum() == 0
        assert again[0].sum() == 0

    def test_pulls_into(self, server: OrderedServer) -> None:
        import numpy
        import torch

        value = {"w": torch.arange(6.0).view(2, 3), "l": [numpy.arange(3), torch.ones(2).half()]}
        assert server.push("k", value, 1, None)
        weight = torch.zeros(3, 2, requires_grad=True)
        into = {"w": weight.detach().T, "l": [numpy.zeros(3, int), torch.zeros(2).half()]}
        found = server.pull("k", into=into)
        assert found is not None
        assert found[0] is into
        assert found[1] == 1
        assert weight.detach().T.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert into["l"][0].tolist() == [0, 1, 2]
        assert into["l"][1].tolist() == [1, 1]
        assert server.pull("absent", into=into) is None

    def test_threads_pull_into_their_own(self, server: OrderedServer) -> None:
        """Memory that is used again must not be another thread's, which still copies from it."""
        import numpy

        for key in range(4):
            assert server.push(key, numpy.full(25_000, key), 1, None)

        def pull(key: int) -> None:
            into = numpy.full(25_000, -1)
            for _ in range(25):
                assert server.pull(key, into=into) == (into, 1)
                assert (into == key).all()
                into[:] = -1

        with switching_often():
            in_threads(4, pull)

    def test_into_must_fit(self, server: OrderedServer) -> None:
        import torch

        value = {"a": torch.ones(2), "b": [torch.ones(2, 2)]}
        assert server.push("k", value, 1, None)
        refused: dict[str, dict[str, Any]] = {
            r"value\['b'\]\[0\] has shape \(2, 2\)": {"a": 2, "b": [torch.zeros(4)]},
            r"value\['b'\]\[0\] has dtype": {"a": 2, "b": [torch.zeros(2, 2).int()]},
            r"value\['b'\] has 1 entries": {"a": 2, "b": []},
            r"value\['b'\]\[0\] is of type": {"a": 2, "b": [{"c": 1}]},
            r"value\['c'\] is not in": {"a": 2, "b": [torch.zeros(2, 2)], "c": torch.zeros(1)},
            r"value\['b'\] was pushed": {"a": 2},
            r"value\['b'\]\[0\] cannot be copied": {"a": 2, "b": [None]},
        }
        for message, into in refused.items():
            target = torch.zeros(2)
            with pytest.raises(ValueError, match=message):
                server.pull("k", into={**into, "a": target})
            assert target.sum() == 0, "something was copied before the misfit was seen"

    @pytest.mark.parametrize("rows", [3, 30_000])
    def test_into_must_have_memory_of_its_own(self, server: OrderedServer, rows: int) -> None:
        """What an expanded tensor is filled with depends on the order of the copies."""
        import numpy
        import torch

        value = {"a": torch.ones(rows), "b": torch.ones(rows, 4)}
        assert server.push("k", value, 1, None)
        assert server.push("n", [torch.ones(rows), numpy.ones((rows, 4))], 1, None)
        refused: dict[str, torch.Tensor] = {
            r"value\['b'\].* share memory": torch.zeros(1, 4).expand(rows, 4),
            r"value\['b'\] .*share memory": torch.zeros(rows + 3).as_strided((rows, 4), (1, 1)),
            r"value\['b'\] .* meta": torch.zeros(rows, 4, device="meta"),
        }
        for message, into in refused.items():
            target = torch.zeros(rows)
            with pytest.raises(ValueError, match=message):
                server.pull("k", into={"a": target, "b": into})
            assert target.sum() == 0, "something was copied before the misfit was seen"
            assert into.is_meta or into.sum() == 0
        target = torch.zeros(rows)
        shared = numpy.lib.stride_tricks.as_strided(numpy.zeros(rows + 3), (rows, 4), (8, 8))
        with pytest.raises(ValueError, match=r"value\[1\] .*share memory"):
            server.pull("n", into=[target, shared])
        assert target.sum() == 0
        assert shared.sum() == 0
        spread = {"a": torch.zeros(2 * rows)[::2], "b": torch.zeros(4, 1, rows).permute(2, 1, 0)}
        spread["b"] = spread["b"].squeeze(1)
        assert server.pull("k", into=spread) == (spread, 1)
        assert spread["a"].sum() == rows
        assert spread["b"].sum() == 4 * rows
        backwards = numpy.zeros((4, rows)).T[::-1]
        assert server.pull("n", into=[target, backwards]) is not None
        assert backwards.sum() == 4 * rows

    @pytest.mark.parametrize("size", [6, 30_000])
    def test_into_must_not_share_memory(self, server: OrderedServer, size: int) -> None:
        """One tensor under two names would have the last value under both."""
        import numpy
        import torch

        value = {"a": torch.zeros(size), "b": torch.ones(size)}
        assert server.push("k", value, 1, None)
        assert server.push("n", [numpy.zeros(size), numpy.ones(size)], 1, None)
        target = torch.full((size + 1,), -1.0)
        array = numpy.full(size + 1, -1.0)
        refused: dict[str, tuple[str, Any]] = {
            r"value\['b'\] .*shares memory with that of value\['a'\]": (
                "k",
                {"a": target[:size], "b": target[:size]},
            ),
            r"value\['a'\] .*shares memory with that of value\['b'\]": (
                "k",
                {"a": target[1:], "b": target[:size]},
            ),
            r"value\[1\] .*shares memory with that of value\[0\]": (
                "n",
                [array[:size], array[size - 1 :: -1]],
            ),
        }
        for message, (key, into) in refused.items():
            with pytest.raises(ValueError, match=message):
                server.pull(key, into=into)
            assert target.eq(-1).all(), "something was copied before the misfit was seen"
            assert (array == -1).all()
        whole = torch.zeros(size, 2)
        columns = {"a": whole[:, 0], "b": whole[:, 1]}
        assert server.pull("k", into=columns) == (columns, 1)
        assert whole.sum(0).tolist() == [0, size]

    @pytest.mark.parametrize("size", [6, 30_000])
    def test_into_may_share_memory_as_the_value_does(
        self, server: OrderedServer, size: int
    ) -> None:
        import torch

        def tied(number: float) -> dict[str, torch.Tensor]:
            weight = torch.full((size,), number)
            return {"first": weight, "second": weight.detach(), "part": weight[2:]}

        assert server.push("k", tied(1), 1, None)
        into = tied(0)
        assert server.pull("k", into=into) == (into, 1)
        assert into["first"].sum() == size

    @pytest.mark.parametrize("size", [6, 30_000])
    def test_attributes_of_a_dictionary(self, server: OrderedServer, size: int) -> None:
        """The state of a model has some; those that are tensors have no truth value."""
        import torch

        state = OrderedDict(weight=torch.zeros(size))
        scale, notes = torch.ones(2), {"step": 0}
        vars(state).update(scale=scale, notes=notes)
        for version in range(3):
            assert server.push("k", state, version, version - 1)
            found = server.pull("k")
            assert found is not None
            assert found[1] == version
            assert found[0].scale.tolist() == [1 + version, 1 + version]
            assert found[0].notes == {"step": version}
            assert type(found[0]) is OrderedDict
            scale += 1
            notes["step"] += 1

    def test_large_values(self, server: OrderedServer) -> None:
        """What takes megabytes may take another way than what is small."""
        import torch

        pushed = full_of(1)
        assert server.push("k", pushed, 1, None)
        for each in pushed.values():
            each.zero_()
        assert server.push("k", full_of(2), 2, 1)
        first, second = server.pull("k", 1), server.pull("k", 1)
        assert first is not None
        assert second is not None
        assert (number_in(first[0]), first[1]) == (1, 1)
        for each in first[0].values():
            each.zero_()
        assert number_in(second[0]) == 1
        into = {name: torch.zeros_like(each) for name, each in pushed.items()}
        for version in (1, 2, None):
            assert server.pull("k", version, into=into) == (into, version or 2)
            assert number_in(into) == (version or 2)
        assert server.push("k", full_of(3), 2, 2)
        assert number_in(into) == 2
        assert number_in(second[0]) == 1

    def test_what_cannot_be_stored_changes_nothing(self, server: OrderedServer) -> None:
        assert server.push("k", "a", 1, None)
        for key, version, prev_version in (("k", 2, 1), ("k", 1, 1), ("new", 1, None)):
            with pytest.raises(SerializationError):
                server.push(key, ["a generator", (i for i in [1])], version, prev_version)
        assert server.pull("k") == ("a", 1)
        assert server.versions("k") == [1]
        assert server.keys() == ["k"]
        assert server.push("k", "b", 2, 1)
