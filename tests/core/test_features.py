"""Every feature is explained, asked for by tests, and declared as it is written."""

from __future__ import annotations

import re

import pytest

from pparallel.registry import INTERFACES, Offer, default_registry
from pparallel.testing import OrderedServerSuite
from pparallel.testing.features import features_of, required_by, suite_of

OFFERS = [each for each in default_registry().offers() if each.features]


@pytest.mark.parametrize("interface", INTERFACES)
def test_what_tests_ask_for_is_explained(interface: str) -> None:
    explained = {each.name for each in features_of(interface)}
    assert required_by(suite_of(interface)) == explained


@pytest.mark.parametrize("offer", OFFERS, ids=lambda each: f"{each.interface}-{each.name}")
def test_what_is_declared_is_explained(offer: Offer) -> None:
    explained = {each.name for each in features_of(offer.interface)}
    assert explained.issuperset(offer.features)


@pytest.mark.parametrize("interface", INTERFACES)
def test_suites_refuse_features_that_there_are_not(interface: str) -> None:
    suite = suite_of(interface)
    known = [each.name for each in features_of(interface)]
    suite().test_declares_features_that_there_are(frozenset(known))
    there_are = re.escape(", ".join(sorted(known)))
    message = f"declares feature 'forkz'; {interface} has: {there_are}\\."
    with pytest.raises(pytest.fail.Exception, match=message):
        suite().test_declares_features_that_there_are(frozenset({*known, "forkz"}))


def test_the_feature_that_was_meant_is_named() -> None:
    message = r"declares feature 'fork'; ordered_server has: forks\. Did you mean 'forks'\?"
    with pytest.raises(pytest.fail.Exception, match=message):
        OrderedServerSuite().test_declares_features_that_there_are(frozenset({"fork"}))


def test_what_is_told_of_a_feature() -> None:
    found = {each.name: each for each in features_of("pool")}
    assert list(found) == ["parallel", "references", "isolated"]
    assert found["parallel"].promise == "tasks overlap in time."
    assert "test_tasks_overlap" in found["parallel"].tests
    assert "test_passes_references" in found["references"].tests
    assert "test_passes_copies" in found["references"].instead
    for interface in INTERFACES:
        for each in features_of(interface):
            assert each.tests, f"no test of {interface} asks for {each.name}"
            assert "test_" not in each.promise
            assert "()" not in each.promise
