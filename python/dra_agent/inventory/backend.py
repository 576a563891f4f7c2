"""What a back end is, and which one answers for a PCI function.

A back end's module is imported only when its hardware is in the topology: nobody pays for vendors that are not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, runtime_checkable

from dra_agent.host import Host
from dra_agent.inventory.amd.mode_changes import ModeChanges
from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.builder import is_vfio
from dra_agent.inventory.model import Device, DeviceEvent, Diagnostic, Exclusion
from dra_agent.inventory.partitions import PartitionRules
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.vendors import is_plain_display
from dra_agent.topology.model import DeviceKind
from dra_agent.topology.model import PciFunction as Function


class DeviceBackend(Protocol):
    """Knows one vendor's or one family's devices; lives as long as the agent and is called by one thread at a time."""

    def devices(self, functions: Sequence[Function], problems: list[Diagnostic]) -> list[Device]:
        """Describe the devices that these functions are; one that is damaged becomes a problem, never an exception."""
        ...

    def close(self) -> None:
        """Let go of vendor libraries."""
        ...


@runtime_checkable
class EventSource(Protocol):
    """A back end that also hears of what happens between two looks."""

    def faults(self) -> list[DeviceEvent]:
        """Give what happened since the last call; asked about once a second, so it waits for nothing for long."""
        ...

    def lost_event_stream(self) -> bool:
        """Tell, once, that nothing is heard before the next look, or too little was seen: one now may mend it."""
        ...


@runtime_checkable
class PartitioningBackend(Protocol):
    """A back end that can offer GPUs in partitions, too."""

    def partition_by(self, rules: PartitionRules) -> None:
        """Take the rules by which it does so; called once, before it describes anything."""
        ...

    def counter_sets(self) -> Sequence[CounterSet]:
        """Give what the devices that were described last share."""
        ...


@runtime_checkable
class ModeChangeListener(Protocol):
    """A back end whose GPUs the agent itself takes down and up again, to divide them."""

    def follow(self, changes: ModeChanges) -> None:
        """Take who tells which these are; called once, before it describes anything."""
        ...


@runtime_checkable
class ExclusionSource(Protocol):
    """A back end that keeps devices back which could be offered under other circumstances."""

    def withheld(self) -> Sequence[Exclusion]:
        """Give those of the last look, with the reasons."""
        ...


_MODULES = {
    "nvidia": "dra_agent.inventory.nvidia.backend",
    "amd": "dra_agent.inventory.amd.backend",
    "intel": "dra_agent.inventory.intel.backend",
    "nic": "dra_agent.inventory.nic",
    "fpga": "dra_agent.inventory.fpga",
    "accelerator": "dra_agent.inventory.accelerator",
    "plain": "dra_agent.inventory.generic",
}
_GPU_BACKENDS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}


def load_backend(name: str, host: Host, settings: InventorySettings) -> DeviceBackend:
    """Import and make the back end of this name."""
    made: DeviceBackend = import_module(_MODULES[name]).make(host, settings)
    return made


def backend_of(function: Function) -> str | None:
    """Name the back end of a function; None for what is never claimed: NVMe, switches, consoles."""
    if function.kind in (DeviceKind.OTHER, DeviceKind.NVME):
        return None
    if is_vfio(function):
        return "plain"
    if function.kind is DeviceKind.GPU:
        if is_plain_display(function.vendor_id):
            return None
        return _GPU_BACKENDS.get(function.vendor_id, "plain")
    return function.kind.value


def is_usable(function: Function) -> bool:
    """Whether anything drives the function: without a driver no container can use it."""
    return bool(
        function.driver
        or function.net
        or function.infiniband
        or function.drm
        or function.accel
        or function.kfd is not None
    )
