"""A network interface for a container: moved in under a name, with MTU, addresses and routes, and put back after."""

from __future__ import annotations

from dra_agent.device_setup.net.parameters import InterfaceConfig, NicConfig, Route
from dra_agent.device_setup.net.setup import NicSetup

__all__ = ["InterfaceConfig", "NicSetup", "NicConfig", "Route"]
