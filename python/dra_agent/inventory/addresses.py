"""IP addresses of one network interface, from the kernel over rtnetlink."""

from __future__ import annotations

import socket
import time

from dra_agent.claimable.kernel_network import dump_addresses
from dra_agent.netdevice import is_of_device

_TIMEOUT_S = 2.0


def addresses(interface: str, hardware_address: str, *, permanent: bool = False) -> tuple[str, ...]:
    """Return an interface's addresses in CIDR notation ("192.0.2.5/24"); OSError if the kernel does not return all.

    `permanent`: without addresses that expire (DHCP, SLAAC).

    Empty if it is missing, or the agent has a separate network namespace: there, an interface of that name is another
    one.
    """
    if not is_of_device(interface, hardware_address):
        return ()
    index = socket.if_nametoindex(interface)
    found = dump_addresses(time.monotonic() + _TIMEOUT_S)
    return tuple(one.text for one in found if one.interface == index and (one.is_permanent or not permanent))
