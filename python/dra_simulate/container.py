"""Permissions of a containerized agent with NVIDIA's driver, by the way in which the container gets its devices.

Sources: nvidia-container-toolkit, cmd/nvidia-container-runtime-hook/container_config.go @ d34b304 and README.md of
nvidia-container-runtime (MIG variables need CAP_SYS_ADMIN, else the container does not start), #1740 and #1947 (JIT-CDI
ignores the variables before 1.20.1, and injects the capability nodes with CAP_SYS_ADMIN since then);
libnvidia-container, src/nvc_mount.c (the legacy mode covers /proc/driver/nvidia). A privileged container can open every
node of the host's /dev.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dra_simulate.nvml import Access

Toolkit = Literal["legacy", "cdi", "cdi-before-1.20.1", "driver-container"]
"""Mode of the container runtime; "driver-container": none of NVIDIA, the pod mounts the files of the driver."""
TOOLKITS: tuple[Toolkit, ...] = ("legacy", "cdi", "cdi-before-1.20.1", "driver-container")


@dataclass(frozen=True, slots=True)
class Container:
    """A container with the agent."""

    toolkit: Toolkit
    sys_admin: bool = False
    privileged: bool = False
    mig_config: bool = False
    """NVIDIA_MIG_CONFIG_DEVICES=all."""
    mig_monitor: bool = False
    """NVIDIA_MIG_MONITOR_DEVICES=all."""

    def access(self) -> Access | None:
        """Return its permissions; None: the runtime refuses to start the container."""
        admin = self.sys_admin or self.privileged
        variables = self.mig_config or self.mig_monitor
        reads_variables = self.toolkit in ("legacy", "cdi")
        if reads_variables and variables and not admin:
            return None
        masked = self.toolkit == "legacy"
        # A capability is opened by its file, which has the number of the node, and by the node.
        nodes = self.privileged
        return Access(
            admin=admin,
            config=(nodes and not masked) or (reads_variables and self.mig_config),
            monitor=(nodes and not masked) or (reads_variables and self.mig_monitor),
            instances=not masked,
        )


def host_service(*, sys_admin: bool) -> Access:
    """Return the permissions of a root service on the host whose unit allows `char-nvidia*`.

    Root opens mig/config (mode 0400) as its owner, without a capability.
    """
    return Access(admin=sys_admin)
