"""A network interface for a container: moved in under a name, with MTU, addresses and routes, and put back after."""

from __future__ import annotations

from dra_agent.setup.net.parameters import Interface, NicConfig, Route
from dra_agent.setup.net.setup import NetworkInterfaces

__all__ = ["Interface", "NetworkInterfaces", "NicConfig", "Route"]
