"""Permissions of an agent in every way to run it: container runtime, privileges and variables, or a service."""

from __future__ import annotations

import itertools

from dra_simulate.container import TOOLKITS, Container, host_service

_PRIVILEGES = ((False, False), (True, False), (False, True))
"""SYS_ADMIN, privileged."""
_VARIABLES = ((False, False), (False, True), (True, True))
"""NVIDIA_MIG_CONFIG_DEVICES, NVIDIA_MIG_MONITOR_DEVICES."""
_CONTAINERS = [
    Container(toolkit, sys_admin=admin, privileged=privileged, mig_config=config, mig_monitor=monitor)
    for toolkit, (admin, privileged), (config, monitor) in itertools.product(TOOLKITS, _PRIVILEGES, _VARIABLES)
]
CASES = {str(container): access for container in _CONTAINERS if (access := container.access()) is not None}
"""By the description of the case. Containers that the runtime refuses to start are left out."""
CASES |= {f"host, sys_admin={admin}": host_service(sys_admin=admin) for admin in (False, True)}
DISTINCT = {access: name for name, access in reversed(CASES.items())}
"""One case for each set of permissions."""
