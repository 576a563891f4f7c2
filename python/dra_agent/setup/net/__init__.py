"""A network interface for a container: moved in under a name by the container runtime, with an MTU, and put back after.

Addresses and routes are not given: a network plugin or the program itself does that.
"""

from __future__ import annotations

from dra_agent.setup.net.parameters import Interface, NicConfig
from dra_agent.setup.net.setup import NetworkInterfaces

__all__ = ["Interface", "NetworkInterfaces", "NicConfig"]
