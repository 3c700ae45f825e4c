"""What is installed: the interfaces, and the backends that plugins offer for them."""

from pparallel.registry.lookup import INTERFACES, Offer, Registry, default_registry

__all__ = ["INTERFACES", "Offer", "Registry", "default_registry"]
