"""Which backends a test runs over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import pytest

from pparallel.errors import ConfigError, did_you_mean
from pparallel.registry import INTERFACES, Offer, default_registry
from pparallel.testing.pytest_plugin.tables import Tables
from pparallel.testing.pytest_plugin.wishes import MARKER, Wish, wish

Names = Mapping[str, set[str]]  #: of backends or features, by interface

OPTION = "pparallel_backends"


class Selection:
    """The backends that one run of pytest is for.

    Args:
        asked: names that the command line or the ini file gives; none at all means every backend.
        source: where they were given.
        tables: what ``pyproject.toml`` tells the backends.

    Raises:
        ConfigError: no installed backend has a name that was asked for.
    """

    def __init__(self, asked: Iterable[str], source: str, tables: Tables) -> None:
        self.tables = tables
        self._source = source
        self._offers: dict[str, dict[str, Offer]] = {each: {} for each in INTERFACES}
        self._broken: list[str] = []  # plugins that did not get as far as to name a backend
        for offer in default_registry().offers():
            if offer.interface in self._offers:
                self._offers[offer.interface][offer.name] = offer
            else:
                self._broken.append(offer.name)
        self._asked = self._backends(asked, source)

    def doubts(self) -> list[str]:
        """Say what may be left out by mistake.

        Raises:
            ConfigError: a table is for an interface that there is not.
        """
        broken = [
            f"plugin {each} could not be loaded, and its backends are not tested: type 'pparallel"
            " backends' to see why"
            for each in self._broken
        ]
        return [*broken, *self.tables.strangers(self._offers)]

    def names(self, interface: str, item: pytest.Item) -> tuple[list[str], str]:
        """Return the backends of *interface* that a test runs over, or why there are none.

        Raises:
            ConfigError: a marker of the test asks for what there is not.
        """
        wished = wish(item)
        over = self._narrowed(interface, wished)
        wanted = self._features(wished.features).get(interface, set())
        found = [each for each in over if wanted <= set(self._offers[interface][each].features)]
        if found:
            return found, ""
        if over:
            features = ", ".join(sorted(wanted))
            return [], f"of the {interface} backends {', '.join(over)} none declares {features}"
        return [], f"no {interface} backend is both in {self._source} and in the test's markers"

    def offer(self, interface: str, name: str) -> Offer:
        """Return what is known of a backend."""
        return self._offers[interface][name]

    def is_asked_for(self, interface: str, name: str, wished: Wish) -> bool:
        """Return whether a backend is to be tested because somebody gave its name."""
        given = [self._asked, *(self._backends(each, MARKER) for each in wished.backends)]
        return any(name in each.get(interface, ()) for each in given)

    def _narrowed(self, interface: str, wished: Wish) -> list[str]:
        given = [self._asked, *(self._backends(each, MARKER) for each in wished.backends)]
        wanted = [each[interface] for each in given if interface in each]
        return sorted(set(self._offers[interface]).intersection(*wanted))

    def _backends(self, texts: Iterable[str], source: str) -> Names:
        try:
            return _by_interface(texts, self._offers, "backend", source)
        except ConfigError as error:
            if not self._broken:
                raise
            names = ", ".join(self._broken)
            message = f"{error} Plugins that could not be loaded may have it: {names}."
            raise ConfigError(message) from None

    def _features(self, texts: Iterable[str]) -> Names:
        declared = {
            interface: {feature for each in offers.values() for feature in each.features}
            for interface, offers in self._offers.items()
        }
        return _by_interface(texts, declared, "feature", MARKER)


_SELECTION = pytest.StashKey[Selection]()


def selection(config: pytest.Config) -> Selection:
    """Return the selection of this run; made once.

    Raises:
        ConfigError: an option or a table asks for what there is not.
    """
    if _SELECTION not in config.stash:
        typed = config.getoption(OPTION) or []
        given, source = (
            (typed, "--pparallel-backends") if typed else (config.getini(OPTION), OPTION)
        )
        asked = [name.strip() for each in given for name in each.split(",") if name.strip()]
        made = Selection(asked, source, Tables.of(config))
        for each in made.doubts():
            _warn(config, each)
        config.stash[_SELECTION] = made
    return config.stash[_SELECTION]


def _warn(config: pytest.Config, message: str) -> None:
    try:
        config.issue_config_time_warning(pytest.PytestConfigWarning(message), stacklevel=2)
    except pytest.PytestConfigWarning as warning:  # warnings are errors
        raise ConfigError(str(warning)) from warning


def _by_interface(
    texts: Iterable[str], known: Mapping[str, Iterable[str]], what: str, source: str
) -> Names:
    """Return what is asked for by interface; a bare name counts for all interfaces that have it."""
    found: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        wanted, colon, name = text.rpartition(":")
        if colon and wanted not in known:
            hint = did_you_mean(wanted, known)
            message = f"no interface {wanted!r}; there are {', '.join(known)}.{hint}"
            raise ConfigError(message, source=source)
        among = [wanted] if colon else list(known)
        having = [interface for interface in among if name in known[interface]]
        if not having:
            raise _unknown(text, name, {each: sorted(known[each]) for each in among}, what, source)
        for interface in having:
            found[interface].add(name)
    return dict(found)


def _unknown(
    text: str, name: str, known: Mapping[str, list[str]], what: str, source: str
) -> ConfigError:
    lists = "; ".join(f"{each}: {', '.join(names)}" for each, names in known.items() if names)
    hint = did_you_mean(name, [each for names in known.values() for each in names])
    message = f"no {what} {text!r}; installed backends have {lists}.{hint}"
    if what == "backend":
        message = f"no backend {text!r}; installed are {lists}.{hint}"
    return ConfigError(message, source=source)
