"""What collectives of several processes stand on, alone: all operations over messages."""

from __future__ import annotations

import pytest
from typing_extensions import override

import pparallel_local.collective
from pparallel.interfaces.collective import CollectiveConfig
from pparallel.runtime.collectives import ConnectedCollective
from pparallel.testing import CollectiveSuite
from pparallel_local import LocalCollectiveConfig


class OverMessages(ConnectedCollective):
    """Has no operations of its own."""

    @override
    def join(self) -> None:
        """There is nothing to set up."""

    @override
    def leave(self) -> None:
        """Nor to give back."""

    @override
    def member_left(self, rank: int, error: BaseException) -> None:
        """Nor to wake."""


@pytest.fixture(autouse=True)
def instead_of_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pparallel_local.collective, "LocalCollective", OverMessages)


class TestOverMessages(CollectiveSuite):
    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return LocalCollectiveConfig()
