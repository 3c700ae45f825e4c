"""The config that every pool's config derives from."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from pparallel.config import BackendConfig
from pparallel.interfaces.pool.pool import Pool
from pparallel.interfaces.pool.progress import Progress
from pparallel.machine.cpus import usable_cpus

Initializer = Annotated[
    Callable[..., object] | str | None, WithJsonSchema({"type": ["string", "null"]})
]
ShownProgress = Annotated[
    Progress, WithJsonSchema({"enum": [True, False, "tqdm", "notebook", "rich"]})
]
_KINDS = {"kinds": "true, false, 'tqdm', 'notebook', 'rich', or a function that makes one"}


class PoolConfig(BackendConfig[Pool], frozen=True):
    """What every pool is told.

    Attributes:
        size: number of workers; ``None``: one for each of ``worker_contexts``, or else as many
            as there are CPUs that this process may use.
        initializer: called in each worker as it starts; a function, or ``"module:function"``.
        initargs: its arguments.
        worker_contexts: one value per worker, passed to the functions that the worker runs as
            their first argument; ``None``: nothing is passed.
        progress: whether calls of many tasks show a progress bar: ``True`` for tqdm's in whichever
            form suits, ``"tqdm"`` for the terminal's, ``"notebook"`` for the notebook's, ``"rich"``
            for rich's; or a function of a name and a total (``None``: unknown) that makes a bar,
            which has tqdm's methods ``update(n)`` and ``close()``.
    """

    interface: ClassVar[str] = "pool"
    default_backend: ClassVar[str] = "thread"
    short: ClassVar[str] = "size"
    synonyms: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("processes", "workers", "num_workers", "n_workers", "nprocs"), "size"),
        **dict.fromkeys(("max_workers", "n_jobs", "num_processes"), "size"),
        **dict.fromkeys(("maxtasksperchild", "max_tasks_per_child"), "max_tasks"),
        **dict.fromkeys(("mp_context", "context", "method"), "start_method"),
        "timeout": "task_timeout",
    }
    size: int | None = Field(default=None, ge=1)
    initializer: Initializer = None
    initargs: tuple[Any, ...] = ()
    worker_contexts: tuple[Any, ...] | None = None
    progress: ShownProgress = False

    @field_validator("initializer")
    @classmethod
    def _names_a_function(cls, value: object) -> object:
        module, _, function = value.partition(":") if isinstance(value, str) else ("x", "", "x")
        if not (module and function):
            raise PydanticCustomError("initializer", "an initializer reads 'module:function'")
        return value

    @field_validator("progress", mode="wrap")
    @classmethod
    def _names_a_bar(cls, value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("progress", "a progress bar is {kinds}", _KINDS) from None

    @field_validator("worker_contexts")
    @classmethod
    def _is_as_long_as_size(
        cls, value: tuple[Any, ...] | None, info: ValidationInfo
    ) -> tuple[Any, ...] | None:
        size = info.data.get("size")
        if value is not None and len(value) != (size or len(value) or 1):
            raise PydanticCustomError(
                "worker_contexts",
                "the number of contexts, {count}, is not equal to the number of workers, {size}",
                {"count": len(value), "size": size or 1},
            )
        return value

    @property
    def workers(self) -> int:
        """The number of workers that this config asks for."""
        if self.size is not None:
            return self.size
        return len(self.worker_contexts) if self.worker_contexts else usable_cpus()

    def context(self, worker: int) -> tuple[Any, ...]:
        """Return what *worker*, numbered from 0, passes first to the functions it runs."""
        return () if self.worker_contexts is None else (self.worker_contexts[worker],)

    def initialize(self) -> None:
        """Run the initializer in the calling thread; raises what it raises."""
        initializer = self.initializer
        if isinstance(initializer, str):
            module, _, name = initializer.partition(":")
            initializer = operator.attrgetter(name)(importlib.import_module(module))
        if initializer is not None:
            initializer(*self.initargs)
