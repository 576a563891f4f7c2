"""What processes do on a device, as its driver counts it, and the part of one claim in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from dra_agent.device_setup.shares.owners import HeldShare, ProcessOwners, UnknownOwnerError
from dra_agent.inventory.model import Device
from dra_agent.processes.containers import Place
from dra_agent.telemetry.model import DeviceSample

MAX_EXCESS_SHARE = 0.05
"""By how much the sum of a claim may exceed all of the time: drivers round the part of each process to a percent."""
BUSY_SHARE = 0.05
"""From this utilization of a device on, a driver that names no process contradicts itself."""


class ProcessUse(msgspec.Struct, frozen=True):
    """One counter of a driver: that of a process, or of an open file that several processes have."""

    places: tuple[Place, ...]
    """Of these processes."""
    engines: Mapping[str, float] | None
    """Part of the time since the reading before in which each kind of engine that computes worked for them; 0 to 1.

    None: it is not counted.
    """
    memory: float | None = None
    """The part in which device memory was accessed for them."""
    reason: str = ""
    """Why it is not counted."""
    is_impossible: bool = False
    """Whether the reason is that the driver reports what cannot be true."""


class ProcessSource(Protocol):
    """Reads what processes do on the devices of a vendor: one implementation for NVIDIA, one for drivers of DRM."""

    name: str

    def can_read(self, device: Device) -> bool:
        """Return whether the source has values of this device now."""
        ...

    def read(
        self, device: Device, owners: ProcessOwners, users: Callable[[], Collection[int]]
    ) -> tuple[ProcessUse, ...] | None:
        """Return what processes did since the reading before; None without one, or while the driver is away.

        `users` returns the processes that may use the device for a claim.

        Raises:
            AgentError, OSError: It cannot be read.
            ValueError: The driver reports what cannot be true, or reports nothing by process.
            UnknownOwnerError: Processes are not visible.
        """
        ...

    def close(self) -> None:
        """Close libraries."""
        ...


def exited(pid: int) -> Place:
    """Return the place of a process that has ended: that of its successor may be another."""
    return Place("unknown", reason=f"process {pid} has exited")


def of_claim(
    held: HeldShare, uses: Sequence[ProcessUse], owners: ProcessOwners, of_device: float | None
) -> DeviceSample:
    """Return the utilization of a claim: the sum over its processes, by the kind of engine that worked longest.

    `of_device` is the utilization that the driver reports for the device.

    Raises:
        UnknownOwnerError: A part may be the claim's, and it is not known whether or how much.
        ValueError: The driver reports what cannot be true of a process that may be of the claim, or the sum of its
            processes is more than all of the time.
    """
    if of_device is not None and of_device >= BUSY_SHARE and not any(use.is_impossible or _works(use) for use in uses):
        raise UnknownOwnerError("the device computes, and the driver names no process")
    engines: dict[str, float] = {}
    memory: float | None = 0.0
    for use in uses:
        if use.engines is not None and not _works(use):
            continue
        problems = {owners.problem(held, place) for place in use.places}
        if problems == {None}:
            continue
        if use.is_impossible:
            raise ValueError(use.reason)
        if problems != {""}:
            texts = sorted(filter(None, problems))
            raise UnknownOwnerError(texts[0] if texts else "a process outside of the claim has a file of it open")
        if use.engines is None:
            raise UnknownOwnerError(use.reason)
        for kind, part in use.engines.items():
            engines[kind] = engines.get(kind, 0.0) + part
        memory = None if memory is None or use.memory is None else memory + use.memory
    return DeviceSample(
        gpu_utilization_ratio=_part(max(engines.values(), default=0.0), "computed"),
        memory_utilization_ratio=None if memory is None else _part(memory, "accessed memory"),
    )


def _works(use: ProcessUse) -> bool:
    return bool(use.memory) or any((use.engines or {}).values())


def _part(total: float, what: str) -> float:
    if total > 1 + MAX_EXCESS_SHARE:
        raise ValueError(f"the processes of a claim {what} in {total:.0%} of the time")
    return min(total, 1.0)
