"""The config that every collective's config derives from."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from pparallel.config import BackendConfig

if TYPE_CHECKING:
    from pparallel.interfaces.collective.collective import Collective  # noqa: F401 - named by its base


class CollectiveConfig(BackendConfig["Collective"], frozen=True):
    """What every collective is told.

    Attributes:
        timeout: seconds that an operation waits for the other members.
        check: whether members compare what they are about to do, so that operations, shapes and
            dtypes that do not fit together raise ``ValueError`` in all of them. Backends that can
            do so at no cost always do; on others members may otherwise hang, or fail later.
    """

    interface: ClassVar[str] = "collective"
    default_backend: ClassVar[str] = "local"
    timeout: float = Field(default=1800.0, gt=0)
    check: bool = False
