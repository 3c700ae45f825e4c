"""What holds among members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import ReducerConfig
from pparallel.testing.reducer.base import MEMBERS, ReducerTests
from pparallel.testing.reducer.models import line, parameters
from pparallel.testing.reducer.programs import (
    manage_everywhere,
    pull_and_scribble,
    push_numbers,
    train_and_listen,
    train_as_member,
    train_early_or_late,
    train_two,
    train_two_at_once,
)
from pparallel.testing.suite import requires


class TogetherTests(ReducerTests):
    """Tests of several members."""

    def test_manages_where_it_says(self, config: ReducerConfig, launcher: LauncherConfig) -> None:
        results = self.launch(launcher, config, manage_everywhere)
        assert "managed" in results

    def test_every_gradient_is_reduced_once(
        self, config: ReducerConfig, launcher: LauncherConfig
    ) -> None:
        books = self.launch(launcher, config, push_numbers)
        pushes = [each.pushes for each in books]
        assert [each.counters.pushed for each in books] == pushes
        assert sum(each.counters.reduced for each in books) == sum(pushes)
        assert {each.counters[2:5] for each in books} == {(0, 0, 0)}, "late, refused or lost"

    def test_each_gradient_weighs_alike(
        self, config: ReducerConfig, launcher: LauncherConfig
    ) -> None:
        books = self.launch(launcher, config, push_numbers)
        pushed = sum(each.pushed for each in books)
        assert sum(each.reduced for each in books) == pytest.approx(pushed, rel=1e-9)

    def test_events_and_counters_agree(
        self, config: ReducerConfig, launcher: LauncherConfig
    ) -> None:
        results = self.launch(launcher, config, train_and_listen)
        for rank, told in enumerate(results):
            *counts, staleness, _ = told.counters
            names = told.counters._fields[:5]
            assert {name: told.events[name] for name in names} == dict(
                zip(names, counts, strict=True)
            )
            assert told.staleness == pytest.approx(staleness * told.counters.reduced)
            assert told.versions == sorted(set(told.versions))
            assert told.pulls[0] >= told.pulls[1]
            assert told.members <= {(f"member-{rank}", "reducer")}
        pushed = sum(each.counters.pushed for each in results)
        assert pushed == sum(each.counters.reduced for each in results) > 0
        assert sum(each.counters.refused for each in results) > 0

    @requires("shared")
    def test_stop_leaves_one_model(self, config: ReducerConfig, launcher: LauncherConfig) -> None:
        results = self.launch(launcher, config, train_as_member)
        assert results == [results[0]] * MEMBERS
        assert results[0] not in [parameters(line(rank)) for rank in range(MEMBERS)]

    @requires("shared")
    @pytest.mark.parametrize("late", [0, MEMBERS - 1])
    def test_a_member_that_asks_late(
        self, config: ReducerConfig, launcher: LauncherConfig, late: int
    ) -> None:
        """A default that is left out of a config opens when a member asks for it."""
        is_default = config == pparallel.load(ReducerConfig, {})
        given = None if is_default else config
        results = self.launch(launcher, given, train_early_or_late, (late,))
        assert results == [results[0]] * MEMBERS

    @requires("shared")
    def test_what_is_pulled_is_the_members_own(
        self, config: ReducerConfig, launcher: LauncherConfig
    ) -> None:
        results = self.launch(launcher, config, pull_and_scribble)
        published = results[0][0]
        assert published in [parameters(line(rank)) for rank in range(MEMBERS)]
        for rank, (pulled, again, scribbled) in enumerate(results):
            assert pulled == again == published
            assert scribbled == {1000.0 + rank}

    @requires("shared")
    @pytest.mark.parametrize("target", [train_two, train_two_at_once])
    def test_two_reducers_do_not_mix(
        self, config: ReducerConfig, launcher: LauncherConfig, target: Callable[..., Any]
    ) -> None:
        results = self.launch(launcher, config, target, critic=config)
        assert results == [results[0]] * MEMBERS
