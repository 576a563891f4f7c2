"""Finds the simulated host, the device and the GPU that a change names, and edits the state of NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dra_agent.errors import UsageError
from dra_simulate import builder, nvml
from dra_simulate.machine import Function, Machine
from dra_simulate.profiles import load_profile
from dra_simulate.roles.network import Interface, RdmaDevice
from dra_simulate.roles.nvidia import NvidiaGpu

_BRIDGE = 0x0604


def find(machine: Machine, device: str) -> Function:
    """Return the function for a name; UsageError lists the existing ones."""
    wanted = device.lower()
    for function in machine.functions():
        if wanted in (function.address, function.address.removeprefix("0000:")):
            return function
        if any(wanted in _names(role) for role in function.roles):
            return function
    known = [function.address for function in machine.functions() if function.id.class_code >> 8 != _BRIDGE]
    raise UsageError(f"no device {device!r} in {machine.name}; known: {', '.join(known)}")


def _names(role: object) -> tuple[str, ...]:
    match role:
        case NvidiaGpu(minor=minor, uuid=uuid):
            return (uuid.lower(), str(minor))
        case Interface(name=name) | RdmaDevice(name=name):
            return (name.lower(),)
    return ()


def gpu_uuid(machine: Machine, device: str) -> str:
    """Return the UUID of an NVIDIA GPU; UsageError for another device lists the GPUs."""
    function = find(machine, device)
    for role in function.roles:
        if isinstance(role, NvidiaGpu):
            return role.uuid
    gpus = ", ".join(other.address for other, _ in machine.with_role(NvidiaGpu)) or "none"
    raise UsageError(f"{function.address} is not an NVIDIA GPU; the GPUs of {machine.name}: {gpus}")


@contextmanager
def changing(
    root: Path, machine: Machine | None, *, needs_machine: bool = True
) -> Iterator[tuple[Machine, builder.SimulatedState]]:
    """Load the host under the lock of its writers, because the agent binds drivers concurrently."""
    recall(root, machine, needs_machine=needs_machine)  # before a lock is made where no host is
    with nvml.locked(root / "lib"):
        yield recall(root, machine, needs_machine=needs_machine)


def recall(
    root: Path, machine: Machine | None, *, needs_machine: bool = True
) -> tuple[Machine, builder.SimulatedState]:
    """Load a host and its machine, that of its profile by default; UsageError if nothing was simulated in `root`."""
    simulated = builder.load_state(root)
    if simulated is None:
        raise UsageError(
            "not a simulated host", where=str(root), hint=f"make one with `dra-agent simulate build PROFILE {root}`"
        )
    if machine is None and needs_machine:
        machine = load_profile(simulated.profile)
    return machine or Machine(simulated.profile, "", (), ()), simulated


def edit(root: Path, change: Callable[[nvml.NvmlState], nvml.NvmlState]) -> None:
    """Write a changed state of NVML. The caller has the lock of its writers."""
    nvml.write(root / "lib", change(nvml.read(root / "lib")))


def set_condition(root: Path, device: str, machine: Machine | None, **changes: object) -> str:
    """Change fields of the `nvml.Condition` of a GPU; return its UUID."""
    machine, _ = recall(root, machine)
    uuid = gpu_uuid(machine, device)

    def changed(state: nvml.NvmlState) -> nvml.NvmlState:
        condition = msgspec.structs.replace(state.conditions.get(uuid, nvml.Condition()), **changes)
        return msgspec.structs.replace(state, conditions={**state.conditions, uuid: condition})

    with nvml.locked(root / "lib"):
        edit(root, changed)
    return uuid
