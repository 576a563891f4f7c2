"""Changes the condition of a simulated NVIDIA GPU: events, recovery, fabric, NVLinks, access."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from dra_simulate import builder, mig, nvml
from dra_simulate.inject.target import changing, edit, find, gpu_uuid, recall, set_condition
from dra_simulate.machine import Machine
from dra_simulate.roles.nvidia import NvidiaGpu

XID_EVENT = 0x8
"""nvmlEventTypeXidCriticalError."""
_KEPT_EVENTS = 256
RECOVERY_ACTIONS = {
    "none": 0,
    "reset": 1,
    "reboot": 2,
    "drain-p2p": 3,
    "drain-and-reset": 4,
    "recover-imex": 5,
    "bus-reset": 6,
    "system-reboot": 7,
}
"""nvmlDeviceGpuRecoveryAction_t of driver 615."""
RECOVERY_EVENT = 0x8000
"""nvmlEventTypeGpuRecoveryAction."""
RECOVERY_CHANGED = 154
"""The XID that the driver logs when the requested recovery changes."""
FABRIC_STATES = {"not-started": 1, "in-progress": 2, "completed": 3}
"""NVML_GPU_FABRIC_STATE_*."""
FABRIC_FAILURES = {
    "bandwidth": 1 << 0,
    "route-recovery": 1 << 2,
    "route-unhealthy": 1 << 4,
    "access-timeout": 1 << 6,
    "system-guid": 2 << 8,
    "chassis": 3 << 8,
    "no-partition": 4 << 8,
    "nvlinks": 5 << 8,
    "firmware": 6 << 8,
    "location": 7 << 8,
    "gpu-state": 8 << 8,
    "global-manager": 2 << 14,
}
"""Bits of NVML_GPU_FABRIC_HEALTH_MASK_*."""
_BANDWIDTH_FULL, _HEALTHY, _UNHEALTHY = 2, 1, 2


def reset(root: Path, device: str, machine: Machine | None = None) -> str:
    """Reset a GPU: its MIG instances are removed, and a pending MIG mode takes effect; return its UUID."""
    machine, _ = recall(root, machine)
    function = find(machine, device)
    uuid = gpu_uuid(machine, device)
    minor = next(role.minor for role in function.roles if isinstance(role, NvidiaGpu))
    mig.reset(root, uuid, minor)
    set_condition(root, device, machine, recovery_action=0)
    return uuid


def recovery(root: Path, device: str, action: int, machine: Machine | None = None) -> str:
    """Let the driver request a recovery of a GPU, with its XID and event; return the GPU's UUID."""
    uuid = set_condition(root, device, machine, recovery_action=action)
    with nvml.locked(root / "lib"):
        add_event(root, uuid, RECOVERY_CHANGED)
        add_event(root, uuid, 0, kind=RECOVERY_EVENT)
    return uuid


def event(root: Path, device: str, kind: int, machine: Machine | None = None) -> str:
    """Raise an event of a GPU by its bit in nvmlEventType; return the GPU's UUID."""
    return _raise(root, device, machine, 0, kind=kind)


def xid(
    root: Path,
    device: str,
    number: int,
    machine: Machine | None = None,
    *,
    gpu_instance: int = nvml.NO_INSTANCE,
    compute_instance: int = nvml.NO_INSTANCE,
) -> str:
    """Raise an XID on a GPU, or on a MIG instance of it; returns the GPU's UUID."""
    return _raise(root, device, machine, number, gpu_instance, compute_instance)


def fabric(
    root: Path,
    device: str,
    state: str,
    machine: Machine | None = None,
    *,
    status: int = 0,
    failures: Collection[str] = (),
) -> str:
    """Set the registration of a GPU with its NVLink fabric; return the GPU's UUID.

    `state` is a key of FABRIC_STATES, `status` nvmlReturn_t, `failures` keys of FABRIC_FAILURES.
    """
    mask = 0 if "bandwidth" in failures else _BANDWIDTH_FULL
    for failure in failures:
        mask |= FABRIC_FAILURES[failure]
    condition = nvml.FabricCondition(FABRIC_STATES[state], status, mask, _UNHEALTHY if failures else _HEALTHY)
    return set_condition(root, device, machine, fabric=condition)


def nvlinks(root: Path, device: str, down: Collection[int], machine: Machine | None = None) -> str:
    """Set which NVLinks of a GPU are down, by their numbers; all others are up. Return the GPU's UUID."""
    return set_condition(root, device, machine, nvlinks_down=tuple(sorted(down)))


def set_access(root: Path, access: nvml.Access, machine: Machine | None = None) -> None:
    """Set the permissions of all processes on the host with NVIDIA's driver (see `container`)."""
    with changing(root, machine) as (machine, simulated):
        builder.apply(machine, msgspec.structs.replace(simulated, access=access), root)


def _raise(
    root: Path,
    device: str,
    machine: Machine | None,
    number: int,
    gpu_instance: int = nvml.NO_INSTANCE,
    compute_instance: int = nvml.NO_INSTANCE,
    *,
    kind: int = XID_EVENT,
) -> str:
    machine, _ = recall(root, machine)
    uuid = gpu_uuid(machine, device)
    with nvml.locked(root / "lib"):
        add_event(root, uuid, number, gpu_instance, compute_instance, kind=kind)
    return uuid


def add_event(
    root: Path,
    uuid: str,
    number: int,
    gpu_instance: int = nvml.NO_INSTANCE,
    compute_instance: int = nvml.NO_INSTANCE,
    *,
    kind: int = XID_EVENT,
) -> None:
    """Append an event, by default an XID. The caller has the lock of the writers of NVML's state."""

    def with_event(state: nvml.NvmlState) -> nvml.NvmlState:
        sequence = max((event.sequence for event in state.events), default=0) + 1
        event = nvml.Event(sequence, uuid, kind, number, gpu_instance, compute_instance)
        return msgspec.structs.replace(state, events=(*state.events, event)[-_KEPT_EVENTS:])

    edit(root, with_event)
