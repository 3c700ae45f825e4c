"""Functions in TorchScript, which are code of torch's: they travel by their names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, cast

from torch.jit import ScriptFunction

_MAIN = ("__main__", "__mp_main__")  #: what one program is called, where it was started and spawned
_PREFIX = "__torch__."


class ScriptName(NamedTuple):
    """A function in TorchScript, as it travels; calling it calls the function.

    Attributes:
        module: where it was defined.
        name: its name there.
    """

    module: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of that name in this process.

        Raises:
            LookupError: there is none.
        """
        return self.found()(*args, **kwargs)

    def found(self) -> Callable[..., Any]:
        """Return the function of that name in this process.

        Raises:
            LookupError: there is none.
        """
        modules = _MAIN if self.module in _MAIN else (self.module,)
        for each in modules:
            namespace = _namespace(each)
            function = namespace.get(self.name)
            for found in (function, *namespace.values()):
                if isinstance(found, ScriptFunction) and _name_of(found) == self:
                    return found
            if callable(function):  # it was scripted in the caller alone
                return cast("Callable[..., Any]", function)
        message = (
            f"the TorchScript function {self.name!r} of module {self.module!r} is not to be found "
            f"in this process: such functions travel by name, so define it at the top level of a "
            "module that all members can import"
        )
        raise LookupError(message)


def sendable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, or what stands for it on its way to another member."""
    if isinstance(function, ScriptFunction):
        return cast("Callable[..., Any]", _name_of(function))
    return function


def _name_of(function: Any) -> ScriptName:
    """Return module and name of a function; torch leaves the name of ``__main__`` out."""
    module, _, name = function.qualified_name.removeprefix(_PREFIX).rpartition(".")
    return ScriptName(module or _MAIN[0], name)


def _namespace(module: str) -> dict[str, Any]:
    if module in _MAIN:
        return vars(sys.modules[module]) if module in sys.modules else {}
    try:
        return vars(import_module(module))
    except ImportError:
        return {}
