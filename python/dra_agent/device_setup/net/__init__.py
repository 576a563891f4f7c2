"""Network interfaces for containers: moved in with name, MTU, addresses and routes, and restored later."""

from __future__ import annotations

from dra_agent.device_setup.net.parameters import InterfaceConfig, NicConfig, Route
from dra_agent.device_setup.net.setup import NicSetup

__all__ = ["InterfaceConfig", "NicSetup", "NicConfig", "Route"]
