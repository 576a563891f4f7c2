"""Unplugs devices from a simulated host, and plugs them in again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dra_agent.errors import UsageError
from dra_simulate import builder, mig
from dra_simulate.inject.gpu import add_event
from dra_simulate.inject.target import changing, find
from dra_simulate.machine import Machine
from dra_simulate.roles.nvidia import NvidiaGpu

FALLEN_OFF_THE_BUS = 79
"""The XID that NVIDIA's driver logs for a GPU that stopped responding."""


def unplug(root: Path, device: str, machine: Machine | None = None) -> str:
    """Remove a device, and all devices below it, from the host; return its PCI address.

    NVML loses GPUs, with the XID for that. `device` is a PCI address, a GPU's UUID or minor number, or the name of an
    interface or RDMA device; `machine` is needed if it is not that of a profile.

    Raises UsageError for an unknown device, or if it is unplugged already.
    """
    with changing(root, machine) as (machine, simulated):
        address = find(machine, device).address
        if address in simulated.unplugged:
            raise UsageError(f"{address} is already unplugged", where=str(root))
        gone = {function.address for function in machine.functions()}
        gone -= {function.address for function in machine.without({address}).functions()}
        gpus = [(gpu.uuid, gpu.minor) for function, gpu in machine.with_role(NvidiaGpu) if function.address in gone]

        def notice() -> None:
            # The driver notices it when it accesses the removed device.
            for uuid, minor in gpus:
                add_event(root, uuid, FALLEN_OFF_THE_BUS)
                mig.reset(root, uuid, minor)

        drivers = {other: driver for other, driver in simulated.drivers.items() if other not in gone}
        now = msgspec.structs.replace(simulated, unplugged=(*simulated.unplugged, address), drivers=drivers)
        builder.apply(machine, now, root, gone=notice)
    return address


def replug(root: Path, device: str, machine: Machine | None = None) -> str:
    """Plug an unplugged device in again; returns its PCI address. Raises UsageError if it is not unplugged."""
    with changing(root, machine) as (machine, simulated):
        address = find(machine, device).address
        if address not in simulated.unplugged:
            raise UsageError(f"{address} is not unplugged", where=str(root), hint=_unplugged(simulated))
        rest = tuple(other for other in simulated.unplugged if other != address)
        builder.apply(machine, msgspec.structs.replace(simulated, unplugged=rest), root)
    return address


def _unplugged(simulated: builder.SimulatedState) -> str:
    return f"unplugged are: {', '.join(simulated.unplugged) or 'none'}"
