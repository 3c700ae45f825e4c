"""``PushPullModelServer``: members share one model by pushing and pulling all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pparallel.compat.machin.server.groups import Group, require_member
from pparallel.compat.machin.server.ordered_server import OrderedServerSimpleImpl

if TYPE_CHECKING:
    from torch.nn import Module

__all__ = ["PushPullModelServer", "PushPullModelServerImpl"]


class PushPullModelServer:
    """Pushes and pulls a model's parameters and buffers, in a chain of versions.

    Which version a model is of, it says itself: ``model.pp_version``, 0 if it says nothing.

    Args:
        model_name: the key on the ordered server.
        o_server: the ordered server: any object with ``push`` and ``pull``.
    """

    def __init__(self, model_name: str, o_server: Any = None) -> None:
        self.model_name, self.o_server = model_name, o_server

    def push(self, model: Module, pull_on_fail: bool = True) -> bool:
        """Push *model* as the successor of the version that it is of; gradients stay.

        Args:
            model: the model.
            pull_on_fail: take the newest parameters if another came first.

        Returns:
            Whether it was taken.

        Raises:
            ValueError: no ordered server was given.
            RuntimeError: the newest parameters do not fit the model.
            PeerLostError: the member that keeps the parameters ended.
        """
        version = int(getattr(model, "pp_version", 0))
        model.pp_version = version  # type: ignore[assignment]  # of one that is refused, too
        state = {name: each.detach().cpu().clone() for name, each in model.state_dict().items()}
        if self._o_server().push(self.model_name, state, version + 1, version):
            model.pp_version = version + 1  # type: ignore[assignment]
            return True
        if pull_on_fail:
            self.pull(model)
        return False

    def pull(self, model: Module) -> bool:
        """Take the newest parameters, and their version; gradients stay.

        Returns:
            Whether there are any.

        Raises:
            ValueError: no ordered server was given.
            RuntimeError: they do not fit the model.
            PeerLostError: the member that keeps the parameters ended.
        """
        found = self._o_server().pull(self.model_name)
        if found is None:
            return False
        state, version = found
        if getattr(model, "pp_version", None) != version:
            model.load_state_dict(state)
            model.pp_version = version
        return True

    def _o_server(self) -> Any:
        if self.o_server is None:
            message = (
                "no ordered server was given: PushPullModelServer(model_name, o_server), or take"
                " the one that PushPullModelServerImpl has paired"
            )
            raise ValueError(message)
        return self.o_server


class PushPullModelServerImpl:
    """Names a :class:`PushPullModelServer` *server_name* for a group.

    Args:
        server_name: under which that is paired.
        group: of this member and those that will use it.
        model_name: the key on the ordered server.
        o_server: an ordered server to use, which can be sent to the others; by default one of its
            own, kept by this member.

    Raises:
        DirectoryError: the name is taken.
        ValueError: this member is not in *group*.
    """

    def __init__(
        self, server_name: str, group: Group, model_name: str = "model", o_server: Any = None
    ) -> None:
        require_member(group)
        self.server_name, self.group, self.model_name = server_name, group, model_name
        if o_server is None:
            o_server = OrderedServerSimpleImpl(f"{server_name}_o_server", group).accessor
        self.o_server = o_server
        group.pair(server_name, PushPullModelServer(model_name, o_server))
