"""Permissions for MIG: the driver's errors without them, and the settings that grant them.

NVML lists GPU instances, their placements and possible placements only for privileged processes (nvml.h, "Requires
privileged user"): those with CAP_SYS_ADMIN, or that can open /proc/driver/nvidia/capabilities/mig/config and its node
(open-gpu-kernel-modules, kernel_mig_manager.c). MIG devices, their ids, names, UUIDs and sizes are reported to all.
"""

from __future__ import annotations

from dra_agent.diagnostic import Diagnostic, UnreadDiagnostic
from dra_agent.host import Host

_UNIT = "install systemd/mig.conf as a drop-in of the unit (CapabilityBoundingSet=CAP_SYS_ADMIN)"
READ_HINT = f"set `mig: read` in the values of the Helm chart, or {_UNIT}"
CHANGE_HINT = f"set `mig: partition` in the values of the Helm chart, or {_UNIT}"


def has_capabilities(host: Host, minor: int | str) -> bool:
    """Return True if the process sees the MIG capabilities of a GPU.

    NVIDIA's container runtime covers /proc/driver/nvidia in its legacy mode (libnvidia-container, src/nvc_mount.c), and
    so hides the capabilities of instances that are created while the container runs.
    """
    return (host.proc / f"driver/nvidia/capabilities/gpu{minor}").is_dir()


def placements_denied(name: str) -> Diagnostic:
    """Return the diagnostic for a GPU whose instances are known without their placements."""
    message = (
        "NVML does not permit the agent to read the placement of its MIG instances: device names contain the id of the "
        "instance (gi) instead"
    )
    return UnreadDiagnostic(name, message, READ_HINT, severity="warning")


def partitions_denied(name: str) -> Diagnostic:
    """Return the diagnostic for a GPU that a rule partitions, whose possible placements cannot be read."""
    message = "inventory.partition selects it, but NVML does not permit the agent to read or create MIG partitions"
    return UnreadDiagnostic(name, message, CHANGE_HINT)


def memory_denied(name: str) -> Diagnostic:
    """Return the diagnostic for a GPU in MIG mode whose total memory cannot be read."""
    message = "NVML does not permit the agent to read its memory in MIG mode, so the whole GPU has no capacity `memory`"
    return UnreadDiagnostic(name, message, READ_HINT, severity="warning")
