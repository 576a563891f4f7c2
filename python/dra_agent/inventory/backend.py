"""The interface of back ends, and the selection of the back end for a PCI function.

The module of a back end is imported only if its hardware is present, so that absent vendors cost no memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from importlib import import_module
from typing import Protocol, runtime_checkable

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import Device, DeviceEvent, Exclusion
from dra_agent.inventory.rules import PartitionRules
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.vendors import GPU_VENDORS
from dra_agent.topology.model import DeviceKind, PciFunction


class DeviceBackend(Protocol):
    """Describes the devices of a vendor or family together, because they depend on each other.

    One implementation for each. It lives as long as the agent, and is called by one thread at a time.
    """

    def devices(self, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> list[Device]:
        """Describe the devices of these functions; a damaged one becomes a problem, never an exception."""
        ...

    def close(self) -> None:
        """Close the vendor libraries."""
        ...


@runtime_checkable
class FunctionBackend(Protocol):
    """A back end that describes each function by itself, so that an event of one does not read the others.

    One implementation for each family.
    """

    def shared_facts(
        self, functions: Sequence[PciFunction], problems: list[Diagnostic], *, again: bool
    ) -> Mapping[str, Hashable]:
        """Return by address what descriptions depend on besides their function: one is made again if it differs.

        `again`: read all of it, not only what kernel events may have changed.
        """
        ...

    def describe(self, function: PciFunction, fact: Hashable, problems: list[Diagnostic]) -> Device:
        """Describe one function, given its shared fact."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


@runtime_checkable
class EventSource(Protocol):
    """A back end that also receives events between two scans, as NVIDIA's and AMD's do."""

    def faults(self) -> list[DeviceEvent]:
        """Return the events since the last call. It is called about once a second and must not block for long."""
        ...

    def lost_event_stream(self) -> bool:
        """Return once that events may be lost until the next scan: a scan now may restore them."""
        ...


@runtime_checkable
class SlowStart(Protocol):
    """A back end with a library whose start may take longer than a scan waits for it.

    A protocol, because generic parts do not import vendors: NVIDIA's back end implements it.
    """

    def wait_for_start(self) -> bool:
        """Wait until it has started or failed; return True if a scan shows more now."""
        ...


@runtime_checkable
class PartitioningBackend(Protocol):
    """A back end that can also publish partitions of GPUs, as those of AMD, Intel and NVIDIA do."""

    def partition_by(self, rules: PartitionRules) -> None:
        """Set the partition rules; called once, before the first `devices`."""
        ...

    def counter_sets(self) -> Sequence[CounterSet]:
        """Return the counter sets of the last described devices."""
        ...


@runtime_checkable
class ModeChangeListener(Protocol):
    """A back end with GPUs that the agent itself switches between partition modes.

    A protocol, because generic parts do not import vendors: AMD's back end implements it.
    """

    def follow(self, changes: ModeChanges) -> None:
        """Set the record of GPUs in transition; called once, before the first `devices`."""
        ...


@runtime_checkable
class ExclusionSource(Protocol):
    """A back end that excludes devices under some conditions.

    A protocol, because generic parts do not import vendors: NVIDIA's back end implements it.
    """

    def withheld(self) -> Sequence[Exclusion]:
        """Return the excluded devices of the last scan, with reasons."""
        ...


_FAMILIES = {
    "nic": "dra_agent.inventory.nic",
    "fpga": "dra_agent.inventory.fpga",
    "accelerator": "dra_agent.inventory.accelerator",
    "plain": "dra_agent.inventory.generic",
}


def load_backend(name: str, host: Host, settings: InventorySettings) -> DeviceBackend | FunctionBackend:
    """Import and create the back end of a family or of a GPU vendor."""
    module = import_module(_FAMILIES.get(name, f"dra_agent.inventory.{name}.backend"))
    backend: DeviceBackend | FunctionBackend = module.make(host, settings)
    return backend


def backend_of(function: PciFunction) -> str:
    """Return the name of the back end of a claimable function."""
    if function.is_vfio:
        return "plain"
    if function.kind is DeviceKind.GPU:
        vendor = GPU_VENDORS.get(function.vendor_id)
        return "plain" if vendor is None else vendor.name
    return function.kind.value
